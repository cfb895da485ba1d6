package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/bench/load"
	"github.com/sluice-lb/sluice/bench/tracking"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// serverHosts is how many hosts serve.
const serverHosts = 3

// lab is the hosts with the servers running.
type lab struct {
	tb          *testbed.Testbed
	self        string // this program
	sluice      string
	dir         string
	cores       cores
	workers     int                // of each proxy in the present run; 0 means 1
	open        int                // connections of the present run, if they are more than usual
	reached     map[string]float64 // by name of a way to load: what the first system that was asked does in a second
	descriptors int                // that a process may have
	remarks     []string           // of the present run, for the report
	tracked     tracking.Table     // of the node, at the end of the run before
	all         []service
	services    []service // of all, those of the present workload
	servers     *testbed.Process
	dns         *testbed.Process // nil until it is needed
	who         []*testbed.Server
}

// newLab builds everything but the proxy, for the build of Sluice at an absolute path. The caller closes it.
func newLab(ctx context.Context, sluice string) (l *lab, err error) {
	l = &lab{sluice: sluice}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	limit, err := raiseDescriptors()
	if err != nil {
		return l, err
	}
	l.descriptors = limit
	if l.self, err = os.Executable(); err != nil {
		return l, fmt.Errorf("find this program: %w", err)
	}
	if l.cores, err = chooseCores(); err != nil {
		return l, err
	}
	if err = l.cores.leave(); err != nil {
		return l, err
	}
	if l.dir, err = os.MkdirTemp("", "sluice-bench-"); err != nil {
		return l, err
	}
	if l.tb, err = testbed.New(testbed.Config{Pods: serverHosts}); err != nil {
		return l, err
	}
	var backends []string
	for _, pod := range l.tb.Pods {
		backends = append(backends, pod.Addr4.String())
	}
	l.all = slices.Concat(services(backends), unevenServices(backends))
	l.services = chosen(l.all, workload{})
	if err = l.prepareHosts(); err != nil {
		return l, err
	}
	return l, l.startServers(ctx)
}

// prepareHosts lifts the limits that would be measured instead of the proxies. A port
// is not reused for 60 s after a connection (TIME_WAIT) unless tcp_tw_reuse says so:
// without it, and with the usual range, a client makes 470 connections per second.
func (l *lab) prepareHosts() error {
	for _, h := range []*testbed.Host{l.tb.Client, l.tb.Node} {
		err := errors.Join(
			h.Sysctl("net.ipv4.ip_local_reserved_ports", "10249,10256,30080-30091"),
			h.Sysctl("net.ipv4.ip_local_port_range", "1024 65535"),
			h.Sysctl("net.ipv4.tcp_tw_reuse", "1"),
		)
		if err != nil {
			return err
		}
	}
	if err := tracking.Shorten(l.tb.Node); err != nil { // no other host tracks connections
		return err
	}
	// The switches are in the place of wires and of another machine: that the kernel
	// asks its rules for frames on a bridge, too, would be counted as work of the
	// proxy that sends them. Where br_netfilter is not loaded it does not.
	for _, h := range []*testbed.Host{l.tb.Router, l.tb.Node} {
		for _, key := range []string{"iptables", "ip6tables", "arptables"} {
			if err := h.Sysctl("net.bridge.bridge-nf-call-"+key, "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// startServers starts one process that serves on every server host, by sockets that
// are made there and passed on.
func (l *lab) startServers(ctx context.Context) error {
	c := load.ServeConfig{Work: make(map[int]time.Duration)}
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close() // the process has its own
		}
	}()
	add := func(kind string, file func() (*os.File, error), s interface{ Close() error }) error {
		defer s.Close()
		f, err := file()
		if err == nil {
			c.Kinds, files = append(c.Kinds, kind), append(files, f)
		}
		return err
	}
	for _, pod := range l.tb.Pods {
		for i, kind := range []string{load.HTTP, load.Sized} {
			ln, err := pod.Listen(ctx, "tcp4", fmt.Sprintf(":%d", l.services[i].target))
			if err != nil {
				return err
			}
			if err := add(kind, ln.(*net.TCPListener).File, ln); err != nil {
				return err
			}
		}
		for kind, name := range map[string]string{load.Echo: echoService, load.EchoGRO: groService} {
			pc, err := pod.ListenPacket(ctx, "udp4", fmt.Sprintf("%s:%d", pod.Addr4, l.service(name).target))
			if err != nil {
				return err
			}
			if err := add(kind, pc.(*net.UDPConn).File, pc); err != nil {
				return err
			}
		}
	}
	for _, w := range workers {
		ln, err := l.tb.Pods[w.host].Listen(ctx, "tcp4", fmt.Sprintf(":%d", w.port))
		if err != nil {
			return err
		}
		c.Work[len(c.Kinds)] = w.takes
		if err := add(load.Sized, ln.(*net.TCPListener).File, ln); err != nil {
			return err
		}
	}
	cmd := command(ctx, l.tb.Pods[0], l.cores.loadList(), l.self, load.Args(load.RoleServe, c)...)
	cmd.ExtraFiles = files
	var err error
	if l.servers, err = cmd.Launch(); err != nil {
		return fmt.Errorf("start servers: %w", err)
	}
	return nil
}

// startDNS starts the DNS server, if it does not run yet, and waits until it answers. Earlier questions count as lost.
func (l *lab) startDNS(ctx context.Context) error {
	if l.dns != nil {
		return nil
	}
	pod := l.tb.Pods[0]
	cmd := command(ctx, pod, l.cores.loadList(), "dnsmasq", "-k", "--conf-file=/dev/null", "--no-resolv", "--no-hosts",
		"--pid-file=", "--user=root", "--listen-address="+pod.Addr4.String(), "--bind-interfaces",
		"--address=/"+dnsDomain+"/192.0.2.77")
	var err error
	if l.dns, err = cmd.Launch(); err != nil {
		return fmt.Errorf("start dnsmasq: %w", err)
	}
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return pod.Dial(ctx, network, netip.AddrPortFrom(pod.Addr4, 53).String())
	}}
	return testbed.Poll(ctx, testbed.Patience, "dnsmasq to answer", func() (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		_, err := resolver.LookupNetIP(ctx, "ip4", dnsName)
		return err == nil, nil
	})
}

// Clients look up dnsName. dnsmasq answers for every name of dnsDomain.
const (
	dnsDomain = "svc.test"
	dnsName   = "a." + dnsDomain + "."
)

// remark adds what no figure says to the report.
func (l *lab) remark(format string, args ...any) {
	l.remarks = append(l.remarks, fmt.Sprintf(format, args...))
}

// close ends all that runs and removes all that was made.
func (l *lab) close() {
	for _, p := range []*testbed.Process{l.servers, l.dns} {
		if p != nil {
			p.Stop(syscall.SIGKILL)
		}
	}
	for _, s := range l.who {
		s.Close()
	}
	if l.tb != nil {
		l.tb.Close()
	}
	if l.dir != "" {
		os.RemoveAll(l.dir)
	}
	if len(l.cores.load) > 0 {
		_ = l.cores.comeBack() // only tests go on after this
	}
}

// service returns one of the services.
func (l *lab) service(name string) service {
	for _, s := range l.services {
		if s.name == name {
			return s
		}
	}
	panic("no service " + name) // the names are constants
}

// onNode runs a program on the node to its end.
func (l *lab) onNode(ctx context.Context, input, name string, args ...string) error {
	cmd := l.tb.Node.Command(ctx, name, args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run %s %v: %w: %s", name, args, err, out)
	}
	return nil
}
