package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// defaultScheduler is kube-proxy's.
const defaultScheduler = "rr"

func (e *Engine) probe(ctx context.Context) error {
	if e.program != nil {
		return nil
	}
	if mark := e.MasqueradeMark; mark >= 1<<numberShift || mark&(mark-1) != 0 {
		return fmt.Errorf("masquerade mark %#x: use one of the bits 0 to %d", mark, numberShift-1)
	}
	name, _, err := parseScheduler(cmp.Or(e.Scheduler, defaultScheduler))
	if err != nil {
		return err
	}
	program, err := netfilter.Open(ctx, "", e.IPv6)
	if err != nil {
		return err
	}
	if err := load(ctx); err != nil {
		return err
	}
	if err := trySchedulers(e.IPv6, name, defaultScheduler); err != nil {
		return err
	}
	m := e.host(lb.Node{}).masquerade
	m.randomFully = true
	if err = tryRules(ctx, program, m); err != nil && !errors.Is(err, netfilter.ErrLocked) && ctx.Err() == nil {
		m.randomFully = false
		err = tryRules(ctx, program, m)
	}
	if err == nil {
		e.program, e.random = program, m.randomFully
	}
	return err
}

func present(ctx context.Context) error { return load(ctx, "--dry-run") }

// load loads ip_vs if it is not there. It must come before the first use of the
// library, which looks up once the number that the kernel has given ipvs.
func load(ctx context.Context, flags ...string) error {
	if _, err := netlink.GenlFamilyGet("IPVS"); err == nil {
		return nil
	}
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

// trySchedulers makes a virtual server with each scheduler and removes it, which loads their
// modules.
func trySchedulers(ipv6 bool, names ...string) error {
	t, err := open(ipv6, new(uint64))
	if err != nil {
		return err
	}
	defer t.Close()
	for _, name := range names {
		k := key{mark: tryMark}
		t.put(k, server{scheduler: name}, false, func() { t.remove(k, func() {}) })
		switch err := t.flush(); {
		case errors.As(err, new(noScheduler)), errors.Is(err, syscall.EAFNOSUPPORT):
			return fmt.Errorf("%w: try scheduler %s: %w", errors.ErrUnsupported, name, err)
		case err != nil:
			return fmt.Errorf("try scheduler %s: %w", name, err)
		}
	}
	return nil
}

// tryRules writes our sets and rules, in chains that nothing leads to, and removes them.
func tryRules(ctx context.Context, program *netfilter.IPTables, m masquerade) error {
	s := shape{ipv6: program.IPv6, prefix: probePrefix}
	r := netfilter.NewRuleset(program, s.layout())
	s.render(r, m)
	return r.Try(ctx)
}

// settings are what forwarding by ipvs needs of the kernel, below /proc/sys/net.
func (e *Engine) settings(release string) map[string]int {
	s := map[string]int{
		"ipv4/ip_forward":   1,
		"ipv4/vs/conntrack": 1, // masquerading works on conntrack's entries
		// What comes for a backend that has gone ends there and is chosen anew, instead of
		// waiting for a timeout; the memory of affinity too.
		"ipv4/vs/expire_nodest_conn":        1,
		"ipv4/vs/expire_quiescent_template": 1,
	}
	// From 4.1 on a client's port that is used again would wait a second while ipvs
	// and conntrack disagree, until 5.9 cured it (f719e3754ee2).
	if !netfilter.AtLeast(release, 5, 9) && netfilter.AtLeast(release, 4, 1) {
		s["ipv4/vs/conn_reuse_mode"] = 0
	}
	if e.StrictARP {
		s["ipv4/conf/all/arp_ignore"] = 1
		s["ipv4/conf/all/arp_announce"] = 2
	}
	return s
}

// applySettings writes what differs from what the kernel has.
func (e *Engine) applySettings(t *table) error {
	var errs []error
	for name, value := range e.settings(netfilter.Release()) {
		errs = append(errs, netfilter.SetSysctl("/", name, value))
	}
	c := ipvs.Config{
		TimeoutTCP: roundUp(e.TCPTimeout), TimeoutTCPFin: roundUp(e.TCPFinTimeout), TimeoutUDP: roundUp(e.UDPTimeout),
	}
	if c != (ipvs.Config{}) {
		if err := t.SetConfig(&c); err != nil {
			errs = append(errs, fmt.Errorf("set timeouts of ipvs: %w", err))
		}
	}
	return errors.Join(errs...)
}

func roundUp(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}
