package soak

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// attack is what one tenant does to the others until ctx is done. It ends what it began, Services included.
type attack struct {
	name string
	run  func(ctx context.Context, a *attacker) error
	bite string // the series that shows that it took place
}

// attacker is the tenant: a client of its own, a pod of its own, and Services with names that begin with "busy".
type attacker struct {
	*lab.Lab
	from *testbed.Host
}

// Addresses of the attacker's Services.
var (
	busy = netip.MustParseAddrPort("10.96.2.1:80")
	hole = netip.MustParseAddrPort("10.96.2.2:80")
)

// attacks are all that the soak has. Their figures are those that broke the program once.
var attacks = []attack{
	{"loops", loops, ""},
	{"TIME_WAIT", timeWait, `sluice_connections_total{protocol="TCP",result="established"}`},
	{"ports in use", portsInUse, `sluice_connections_total{protocol="TCP",result="no_local_ports"}`},
	{"silent endpoints", silentEndpoints, `sluice_dials_total{protocol="TCP",result="timeout"}`},
	{"many silent Services", manySilent, `sluice_dials_total{protocol="TCP",result="timeout"}`},
	{"storm", storm, `sluice_connections_total{protocol="TCP",result="established"}`},
	{"greedy client", greedy, `sluice_connections_total{protocol="TCP",result="established"}`},
	{"UDP flood", udpFlood, `sluice_ended_connections_total{protocol="UDP",reason="service_share"}`},
	{"slow HTTP", slowHTTP, "sluice_http_refused_connections_total"},
	{"big Service", bigService, ""},
}

// newAttacker has the attacker's Services be there.
func newAttacker(l *lab.Lab) *attacker {
	a := &attacker{l, l.Clients[1]}
	own := l.Pods[attacked]
	server, err := serve(l.T.Context(), own)
	testbed.Check(l.T, err)
	l.T.Cleanup(func() { server.Stop(syscall.SIGKILL) })
	testbed.Check(l.T, l.Pods[silent].Blackhole(true))
	a.service("busy", busy.String(), "TCP", 80, own.Addr4.String())
	a.service("busy-dns-0", "10.96.2.10:53", "UDP", 53, own.Addr4.String())
	a.service("busy-dns-1", "10.96.2.11:53", "UDP", 53, own.Addr4.String())
	a.service("busy-hole", hole.String(), "TCP", 80, l.Pods[silent].Addr4.String())
	testbed.Check(l.T, a.from.Sysctl("net.ipv4.ip_local_port_range", "10240 65000"))
	l.HaveSources(a.from)
	testbed.Check(l.T, a.from.Sysctl("net.ipv4.tcp_tw_reuse", "1"))
	return a
}

func (a *attacker) service(name, addr, protocol string, port int, endpoints ...string) {
	a.Write(name+".yaml", testbed.ServiceManifest(name, addr, protocol, ""),
		testbed.SliceManifest(name, 1, port, protocol, endpoints...))
}

// looping are Services whose endpoints lead back to the program, in both families: by their own address, in a ring, and
// by a node port.
func (a *attacker) looping() map[string]string {
	named := strings.NewReplacer(":", "-", ".", "-", "[", "", "]", "")
	manifest := func(protocol, addr, more, to string, port int) string {
		name := "busy-loop-" + strings.ToLower(protocol) + "-" + named.Replace(addr)
		if strings.HasPrefix(addr, "[") {
			more = "  ipFamilies: [IPv6]\n" + more
		}
		return testbed.ServiceManifest(name, addr, protocol, more) + "---\n" +
			testbed.SliceManifest(name, 1, port, protocol, to)
	}
	out := make(map[string]string)
	for i, protocol := range []string{"TCP", "UDP", "SCTP"} {
		ip := func(n int) string { return fmt.Sprintf("10.96.%d.%d", 40+i, n) }
		ip6 := func(n int) string { return fmt.Sprintf("fd96::%d:%d", 40+i, n) }
		const nodePort = "    nodePort: 30777\n  type: NodePort\n"
		out[protocol+" own"] = manifest(protocol, ip(1)+":80", "", ip(1), 80)
		out[protocol+" ring"] = manifest(protocol, ip(2)+":80", "", ip(3), 80) + "---\n" +
			manifest(protocol, ip(3)+":80", "", ip(2), 80)
		out[protocol+" node port"] = manifest(protocol, ip(4)+":80", nodePort, a.Node.Addr4.String(), 30777)
		out[protocol+" external"] = manifest(protocol, ip(5)+":80", "  externalIPs: [198.51.100."+fmt.Sprint(i+1)+"]\n",
			"198.51.100."+fmt.Sprint(i+1), 80)
		out[protocol+" own IPv6"] = manifest(protocol, "["+ip6(1)+"]:80", "", ip6(1), 80)
	}
	return out
}

// loops has a client for each of the Services that loop.
func loops(ctx context.Context, a *attacker) error {
	services := a.looping()
	for name, documents := range services {
		file := "busy-loop-" + strings.ReplaceAll(name, " ", "-") + ".yaml"
		a.Write(file, documents)
		defer func() { _ = os.Remove(filepath.Join(a.Dir, file)) }()
	}
	if err := a.await(ctx, `sluice_endpoints_excluded{reason="loop"}`, len(services)+3); err != nil { // a ring has two
		return err
	}
	for ctx.Err() == nil {
		for i := range 3 {
			for n := 1; n <= 5; n++ {
				to := fmt.Sprintf("10.96.%d.%d:80", 40+i, n)
				if c, err := a.from.Dial(ctx, []string{"tcp", "udp", "tcp"}[i], to); err == nil {
					_, _ = io.WriteString(c, "?") // what comes of it is what the victims see
					_ = c.Close()
				}
			}
		}
		pause(ctx, 100*time.Millisecond)
	}
	if n, err := a.series(context.WithoutCancel(ctx), `sluice_active_connections{protocol="TCP"}`); err != nil || n > 100 {
		return fmt.Errorf("%v connections are open: they have come back: %w", n, err)
	}
	return nil
}

// series returns a metric of the program. Attacks run beside the test, and may not end it.
func (a *attacker) series(ctx context.Context, name string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, testbed.Patience)
	defer cancel()
	_, page, err := a.Node.Get(ctx, testbed.MetricsURL)
	value, ok := testbed.Series(page, name)
	if err == nil && !ok {
		err = fmt.Errorf("no metric %s", name)
	}
	return value, err
}

// await waits until a metric is at least so much.
func (a *attacker) await(ctx context.Context, name string, least int) error {
	last := 0.0
	err := testbed.Poll(ctx, testbed.Patience, name, func() (ok bool, err error) {
		last, err = a.series(ctx, name)
		return last >= float64(least), err
	})
	if err != nil {
		return fmt.Errorf("%s is %v, want %d: %w", name, last, least, err)
	}
	return nil
}

// timeWait has its clients end their connections first.
func timeWait(ctx context.Context, a *attacker) error {
	return knock{To: busy, Rate: 1500, Hold: 50 * time.Millisecond}.run(ctx, a.from)
}

// portsInUse holds all ports of the node towards one endpoint, and has new clients for it.
func portsInUse(ctx context.Context, a *attacker) error {
	return knock{To: busy, Rate: 3000, Hold: time.Hour, Most: nodePorts + 1500}.run(ctx, a.from)
}

// silentEndpoints has clients of a Service whose endpoint never answers.
func silentEndpoints(ctx context.Context, a *attacker) error {
	return knock{To: hole, Rate: 4000, Hold: 2500 * time.Millisecond}.run(ctx, a.from)
}

// manySilent has clients at many addresses, for many Services whose endpoints never answer: none of them has a large
// share of anything.
func manySilent(ctx context.Context, a *attacker) error {
	const services = 600
	first := netip.MustParseAddr("10.96.64.1")
	var all []string
	for i := range services {
		name, ip := fmt.Sprint("busy-hole-", i), netip.AddrFrom4(nth(first, i, services))
		all = append(all, testbed.ServiceManifest(name, ip.String()+":80", "TCP", ""),
			testbed.SliceManifest(name, 1, 80, "TCP", a.Pods[silent].Addr4.String()))
	}
	a.Write("busy-holes.yaml", all...)
	defer func() { _ = os.Remove(filepath.Join(a.Dir, "busy-holes.yaml")) }()
	if err := a.await(ctx, "sluice_services", services); err != nil {
		return err
	}
	return knock{To: netip.AddrPortFrom(first, 80), Addrs: services, Sources: 250, Rate: 4000,
		Hold: 4500 * time.Millisecond}.run(ctx, a.from)
}

// storm has 10,000 new connections a second.
func storm(ctx context.Context, a *attacker) error {
	return knock{To: busy, Rate: 10000, Hold: 30 * time.Millisecond}.run(ctx, a.from)
}

// greedy holds as many connections as there are descriptors for.
func greedy(ctx context.Context, a *attacker) error {
	return knock{To: busy, Rate: 4000, Hold: time.Hour, Most: 10000}.run(ctx, a.from)
}

// slowHTTP holds connections at the health port, with half of a request.
func slowHTTP(ctx context.Context, a *attacker) error {
	return knock{To: netip.AddrPortFrom(a.Node.Addr4, 10256), Rate: 3000, Hold: time.Hour, Most: 6000,
		Send: "GET /healthz HTTP/1.1\r\nX: "}.run(ctx, a.from)
}

// udpFlood sends datagrams from 100,000 sources to two Services.
func udpFlood(ctx context.Context, a *attacker) error {
	stop := a.Flood(a.from, netip.MustParseAddrPort("10.96.2.10:53"), netip.MustParseAddrPort("10.96.2.11:53"))
	<-ctx.Done()
	stop()
	return nil
}

// bigService has a Service of 65,535 ports come and go.
func bigService(ctx context.Context, a *attacker) error {
	const most = 65535
	var ports, endpoints strings.Builder
	for p := 1; p <= most; p++ {
		fmt.Fprintf(&ports, "  - {name: p%d, port: %d}\n", p, p)
		fmt.Fprintf(&endpoints, "- {name: p%d, port: %d}\n", p, p)
	}
	service := "apiVersion: v1\nkind: Service\nmetadata: {name: busy-big}\nspec:\n  clusterIP: 10.96.2.20\n  ports:\n" +
		ports.String()
	slice := "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: busy-big-1\n" +
		"  labels: {kubernetes.io/service-name: busy-big}\naddressType: IPv4\nports:\n" + endpoints.String() +
		"endpoints:\n- addresses: [" + a.Pods[attacked].Addr4.String() + "]\n"
	for ctx.Err() == nil {
		a.Write("busy-big.yaml", service, slice)
		if err := a.await(ctx, "sluice_services", most); err != nil && ctx.Err() == nil {
			return err
		}
		if err := os.Remove(filepath.Join(a.Dir, "busy-big.yaml")); err != nil {
			return err
		}
		pause(ctx, 2*time.Second)
	}
	return nil
}

// pause waits, or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// TestAttacks: whatever one tenant does, no client of the others sees an error or waits for longer than patience, the
// share that bites is counted, and a Service that comes meanwhile is served.
func TestAttacks(t *testing.T) {
	testbed.Race(t)
	for _, atk := range attacks {
		t.Run(strings.ReplaceAll(atk.name, " ", "_"), func(t *testing.T) {
			s := newStage(t)
			s.start()
			s.victims.start()
			pause(t.Context(), time.Second)
			s.unharmed(t, "before")
			before := s.bitten(atk)
			lasts := 4 * time.Second
			if testing.Short() {
				lasts = 3 * time.Second
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- atk.run(ctx, s.attacker) }()
			pause(ctx, lasts/2)
			s.newcomer(1)
			pause(ctx, lasts/2)
			if atk.bite != "" {
				s.Lab.Eventually(atk.bite+" moves", func() bool { return s.bitten(atk) > before })
			}
			cancel()
			testbed.Check(t, <-ended)
			s.unharmed(t, "beside it")
			s.newcomer(2)
		})
	}
}
