package ipvs

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

func (e *Engine) probe(ctx context.Context) (Facts, error) {
	if e.program != nil {
		return e.facts, nil
	}
	if mark := e.MasqueradeMark; mark >= 1<<numberShift || mark&(mark-1) != 0 {
		return Facts{}, fmt.Errorf("masquerade mark %#x: use one of the bits 0 to %d", mark, numberShift-1)
	}
	if _, _, err := parseScheduler(cmp.Or(e.Scheduler, defaultScheduler)); err != nil {
		return Facts{}, err
	}
	program, err := netfilter.Open(ctx, e.Command, e.IPv6)
	if err != nil {
		return Facts{}, err
	}
	facts := Facts{Version: program.Version}

	if err := loadIPVS(ctx); err != nil {
		return Facts{}, err
	}
	if facts.Schedulers, err = trySchedulers(e.IPv6, cmp.Or(e.Scheduler, defaultScheduler)); err != nil {
		return Facts{}, err
	}
	if facts.Device, err = tryInterface(); err != nil {
		return Facts{}, err
	}
	m := e.host(lb.Node{}).masquerade
	m.randomFully = true
	if err = tryRules(ctx, program, m); err != nil && ctx.Err() == nil {
		m.randomFully = false
		err = tryRules(ctx, program, m)
	}
	if err != nil {
		return Facts{}, err
	}
	facts.SCTP = hasSCTP()
	facts.Warnings = warnings(e.IPv6)
	e.program, e.random, e.facts = program, m.randomFully, facts
	return facts, nil
}

func present(ctx context.Context) error {
	if _, err := netlink.GenlFamilyGet("IPVS"); err == nil {
		return nil
	}
	return modprobe(ctx, "--dry-run")
}

// loadIPVS loads ip_vs if it is not there. It must come before the first use of the
// library, which looks up once the number that the kernel has given ipvs.
func loadIPVS(ctx context.Context) error {
	if _, err := netlink.GenlFamilyGet("IPVS"); err == nil {
		return nil
	}
	err := modprobe(ctx)
	if _, err2 := netlink.GenlFamilyGet("IPVS"); err2 == nil {
		return nil
	} else if err == nil {
		err = fmt.Errorf("%w: the kernel has no ip_vs: %w", errors.ErrUnsupported, err2)
	}
	return err
}

// modprobe loads the module.
func modprobe(ctx context.Context, flags ...string) error {
	path, err := exec.LookPath("modprobe")
	if err != nil {
		path, err = exec.LookPath("/sbin/modprobe") // not in every PATH
	}
	if err == nil {
		_, err = netfilter.Run(ctx, nil, path, append(flags, "ip_vs")...)
	}
	if err != nil {
		return fmt.Errorf("%w: the kernel has no ip_vs: %w", errors.ErrUnsupported, err)
	}
	return nil
}

// tryMark is that of the virtual servers that are tried: no Service's, as its lower
// half is not empty.
const tryMark = 0x51c0ffee

// trySchedulers returns those that the kernel has, found out by making a virtual
// server with each; it loads their modules. The requested one and rr must be among them.
func trySchedulers(ipv6 bool, requested string) ([]string, error) {
	t, err := open(ipv6, new(uint64))
	if err != nil {
		return nil, err
	}
	defer t.Close()
	name, _, _ := strings.Cut(requested, ",")
	k := key{mark: tryMark}
	var have []string
	for _, s := range append([]string{name}, schedulers...) {
		err := t.NewService(t.service(k, server{scheduler: s}))
		switch {
		case errors.Is(err, syscall.ENOENT):
		case errors.Is(err, syscall.EAFNOSUPPORT):
			return nil, fmt.Errorf("%w: the ip_vs of this kernel has no %s", errors.ErrUnsupported, t)
		case err != nil:
			return nil, fmt.Errorf("try scheduler %s: %w", s, err)
		default:
			if err := t.remove(k); err != nil {
				return nil, err
			}
			have = append(have, s)
		}
	}
	return tidy(have, requested)
}

// tidy returns the schedulers sorted and once each, or an error if the requested one or rr
// is not among them.
func tidy(have []string, requested string) ([]string, error) {
	name, _, err := parseScheduler(requested)
	if err != nil {
		return nil, err
	}
	slices.Sort(have)
	have = slices.Compact(have)
	for _, s := range []string{name, defaultScheduler} {
		if !slices.Contains(have, s) {
			return nil, fmt.Errorf("%w: %w", errors.ErrUnsupported, noScheduler{s})
		}
	}
	return have, nil
}

// tryInterface makes an interface as ours and removes it.
func tryInterface() (string, error) {
	if link, err := netlink.LinkByName(interfaceName); err == nil {
		return link.Type(), nil
	}
	link, kind, err := makeInterface(probeName)
	if err != nil {
		return "", err
	}
	if err := netlink.LinkDel(link); err != nil {
		return "", fmt.Errorf("remove interface %s: %w", probeName, err)
	}
	return kind, nil
}

// tryRules writes our sets and rules, in chains that nothing leads to, and removes them.
func tryRules(ctx context.Context, program *netfilter.IPTables, m masquerade) error {
	s := shape{ipv6: program.IPv6, prefix: probePrefix}
	r := netfilter.NewRuleset(program, s.layout())
	s.render(r, m)
	return r.Try(ctx)
}

// hasSCTP reports whether ip_vs forwards SCTP, which is chosen when the kernel is
// built. Where its configuration cannot be read it is taken for granted, as every
// distribution has it.
func hasSCTP() bool {
	f, err := os.Open("/boot/config-" + netfilter.Release())
	var r io.Reader = f
	if err != nil {
		if f, err = os.Open("/proc/config.gz"); err != nil {
			return true
		}
		if r, err = gzip.NewReader(f); err != nil {
			f.Close()
			return true
		}
	}
	defer f.Close()
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		switch lines.Text() {
		case "CONFIG_IP_VS_PROTO_SCTP=y":
			return true
		case "# CONFIG_IP_VS_PROTO_SCTP is not set":
			return false
		}
	}
	return true
}

// warnings checks settings that are not ours to change and without which answers do not
// come back through this node.
func warnings(ipv6 bool) (out []string) {
	value := func(path string) string {
		b, _ := os.ReadFile(path) // absent is as good as any other value
		return strings.TrimSpace(string(b))
	}
	bridge := "/proc/sys/net/bridge/bridge-nf-call-iptables"
	if ipv6 {
		bridge = "/proc/sys/net/bridge/bridge-nf-call-ip6tables"
		if value("/proc/sys/net/ipv6/conf/all/forwarding") == "0" {
			out = append(out, "net.ipv6.conf.all.forwarding is 0: answers of pods will not be forwarded")
		}
	}
	if value(bridge) == "0" {
		out = append(out, bridge+" is 0: the answers of pods on one bridge bypass ipvs")
	}
	return out
}
