package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/sluice-lb/sluice/bench/load"
	"github.com/sluice-lb/sluice/bench/report"
	"github.com/sluice-lb/sluice/bench/tracking"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// system is one of those that are compared.
type system struct {
	name    string
	needs   string   // the program it is; empty for what is always there
	build   string   // the path, if it is another build of Sluice
	flags   []string // of it
	speaks  string   // protocols; empty for all
	ceiling bool     // no proxy, but what one could reach at best

	balances bool // by several algorithms
	start    func(context.Context, *lab) (*running, error)
	say      []string // a command that says its version
}

// running is a system that forwards.
type running struct {
	name    string
	process *testbed.Process // nil for the kernel's own
	direct  bool             // clients ask the servers themselves
	stop    func() error
}

func (r *running) pid() int {
	if r.process == nil {
		return 0
	}
	return r.process.Pid()
}

// addrs returns what a client asks for a service.
func (r *running) addrs(s service) []string {
	if r.direct {
		return s.targets()
	}
	return []string{s.addr()}
}

// relayName is the proxy of goroutines.
const relayName = "goroutines"

// systems are all that can be compared.
var systems = []system{
	{name: report.Ours, balances: true, start: startOurs},
	{name: haproxyName, needs: haproxyName, speaks: tcp, balances: true, start: startHAProxy,
		say: []string{haproxyName, "-v"}},
	{name: nginxName, needs: nginxName, speaks: tcp + udp, balances: true, start: startNginx,
		say: []string{nginxName, "-v"}},
	{name: relayName, speaks: tcp + udp, start: startRelay},
	{name: "ipvs", ceiling: true, needs: "ipvsadm", start: startIPVS, say: []string{"ipvsadm", "--version"}},
	{name: report.DNAT, ceiling: true, needs: "iptables-restore", start: startDNAT,
		say: []string{"iptables", "--version"}},
	{name: report.Queue, ceiling: true, start: startQueue},
	{name: "direct", ceiling: true, start: startDirect},
}

// systemOf returns the system with a name.
func systemOf(name string) system {
	return systems[slices.IndexFunc(systems, func(s system) bool { return s.name == name })]
}

// version returns what a system says it is.
func (s system) version(ctx context.Context, sluice string) (string, error) {
	command := s.say
	switch s.name {
	case report.Ours, report.Queue:
		command = []string{sluice, "--version"}
	case relayName:
		return "io.Copy of " + runtime.Version() + ", as kube-proxy's userspace mode", nil
	case "direct":
		return "routed by the node, without a proxy", nil
	}
	out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w: %s", s.name, err, firstLine(string(out)))
	}
	return firstLine(string(out)), nil
}

// hostLacks reports what the kernel lacks for a system; empty if it has all.
func (s system) hostLacks() string {
	if s.name == "ipvs" {
		if inVM() {
			_ = exec.Command("modprobe", "ip_vs").Run() // what is missing is seen below
		}
		if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
			return "the kernel has no ip_vs, or it is not loaded"
		}
	}
	return ""
}

func startOurs(ctx context.Context, l *lab) (*running, error) {
	return startSluice(ctx, l, report.Ours, l.sluice)
}

func startQueue(ctx context.Context, l *lab) (*running, error) {
	return startSluice(ctx, l, report.Queue, l.sluice, "--proxy-mode", "queue")
}

func startSluice(ctx context.Context, l *lab, name, path string, flags ...string) (*running, error) {
	dir := filepath.Join(l.dir, "manifests")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := testbed.WriteManifest(dir, "services.yaml", manifests(l.services)); err != nil {
		return nil, err
	}
	return l.sluiceWith(ctx, name, path, dir, flags...)
}

// sluiceWith starts the build of Sluice at path with a folder of manifests and waits
// until it serves. Its stop removes what it has written to the kernel.
func (l *lab) sluiceWith(ctx context.Context, name, path, manifests string, flags ...string) (*running, error) {
	// What a change takes is measured, and not the rest that follows one.
	args := append([]string{"--manifests", manifests, "--loops", strconv.Itoa(max(1, l.workers)),
		"--drain-timeout", "100ms", "--iptables-min-sync-period", "0s"}, flags...)
	p, err := command(ctx, l.tb.Node, l.pathList(flags), path, args...).Launch()
	if err != nil {
		return nil, err
	}
	r := &running{name: name, process: p}
	r.stop = func() error {
		p.Stop(syscall.SIGTERM)
		return errors.Join(l.onNode(context.Background(), "", path, "--cleanup"), l.flush(nil))
	}
	if err := p.Healthy(ctx, testbed.HealthURL); err != nil {
		return nil, errors.Join(err, fmt.Errorf("start sluice: %s", p.Log.String()), r.stop())
	}
	return r, nil
}

// proxy makes a process on the node, on the proxy's core.
func (l *lab) proxy(ctx context.Context, name string, args ...string) *testbed.Cmd {
	return command(ctx, l.tb.Node, l.proxyList(), name, args...)
}

// get asks an HTTP server on the node.
func (l *lab) get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, testbed.Patience)
	defer cancel()
	code, body, err := l.tb.Node.Get(ctx, url)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("get %s: %s", url, http.StatusText(code))
	}
	return body, err
}

func startHAProxy(ctx context.Context, l *lab) (*running, error) {
	file := filepath.Join(l.dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(haproxyConfig(l.services, l.workers, l.connections())), 0o644); err != nil {
		return nil, err
	}
	return l.peer(ctx, haproxyName, l.proxy(ctx, haproxyName, "-db", "-f", file))
}

func startNginx(ctx context.Context, l *lab) (*running, error) {
	file := filepath.Join(l.dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(nginxConfig(l.services, l.workers, l.dir, streamModule(), l.connections())),
		0o644); err != nil {
		return nil, err
	}
	return l.peer(ctx, nginxName, l.proxy(ctx, nginxName, "-p", l.dir, "-c", file, "-e", "stderr"))
}

func startRelay(ctx context.Context, l *lab) (*running, error) {
	return l.peer(ctx, relayName, l.proxy(ctx, l.self, load.Args(load.RoleRelay, relayConfig(l.services))...))
}

// peer starts a proxy that gets its packets by REDIRECT, and waits until it listens.
func (l *lab) peer(ctx context.Context, name string, cmd *testbed.Cmd) (*running, error) {
	if err := l.onNode(ctx, redirectRules(l.services), "iptables-restore", "--noflush"); err != nil {
		return nil, err
	}
	p, err := cmd.Launch()
	if err != nil {
		return nil, errors.Join(err, l.flush(nil))
	}
	r := &running{name: name, process: p}
	r.stop = func() error {
		p.Stop(syscall.SIGTERM) // nginx ends its workers, which would stay without it
		return l.flush(nil)
	}
	err = until(ctx, name, func() bool { return p.Ended() || l.listens(ctx, name, p) })
	if err != nil || p.Ended() {
		return nil, errors.Join(err, fmt.Errorf("start %s: %s", name, p.Log.String()), r.stop())
	}
	return r, nil
}

// listens reports whether a peer has opened all of its sockets. The proxy of goroutines
// reports it; the other ones open all before they accept on the first.
func (l *lab) listens(ctx context.Context, name string, p *testbed.Process) bool {
	if name == relayName {
		return strings.Contains(p.Log.String(), load.Begin)
	}
	c, err := l.tb.Node.Dial(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", l.services[0].local))
	if err != nil {
		return false
	}
	c.Close()
	return true
}

func startDNAT(ctx context.Context, l *lab) (*running, error) {
	r := &running{name: report.DNAT, stop: func() error { return l.flush(nil) }}
	return r, l.onNode(ctx, dnatRules(l.services), "iptables-restore", "--noflush")
}

func startDirect(_ context.Context, l *lab) (*running, error) {
	return &running{name: "direct", direct: true, stop: func() error { return l.flush(nil) }}, nil
}

// startIPVS has the kernel take the addresses as its own, which ipvs wants.
func startIPVS(ctx context.Context, l *lab) (*running, error) {
	r := &running{name: "ipvs", stop: func() error {
		return l.flush(func(ctx context.Context) error {
			return errors.Join(l.onNode(ctx, "", "ipvsadm", "--clear"), l.onNode(ctx, "", "ip", "link", "del", "ipvs0"))
		})
	}}
	commands := []string{"link add ipvs0 type dummy"}
	for _, s := range l.services {
		commands = append(commands, "addr add "+s.ip+"/32 dev ipvs0")
	}
	for _, c := range commands {
		if err := l.onNode(ctx, "", "ip", strings.Fields(c)...); err != nil {
			return nil, errors.Join(err, r.stop())
		}
	}
	if err := l.onNode(ctx, ipvsRules(l.services), "ipvsadm", "--restore"); err != nil {
		return nil, errors.Join(err, r.stop())
	}
	return r, nil
}

// flush removes the peers' rules, calls undo, and deletes the node's conntrack entries,
// after a run that was interrupted too. It returns tracking.ErrInvalid if conntrack has spoiled the run.
func (l *lab) flush(undo func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), testbed.Patience)
	defer cancel()
	errs := []error{l.judgeTable(ctx)}
	if undo != nil {
		errs = append(errs, undo(ctx))
	}
	errs = append(errs, l.onNode(ctx, "", "iptables", "-w", "-t", "nat", "-F", "PREROUTING"),
		l.onNode(ctx, "", "conntrack", "-F"))
	return errors.Join(errs...)
}

// judgeTable looks at what conntrack did on the node since it was called before.
func (l *lab) judgeTable(ctx context.Context) error {
	now, err := tracking.Read(ctx, l.tb.Node)
	if err != nil {
		return err
	}
	before := l.tracked
	l.tracked = now
	return now.Since(before)
}
