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

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
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
	busy   = netip.MustParseAddrPort("10.96.2.1:80")
	hole   = netip.MustParseAddrPort("10.96.2.2:80")
	looped = netip.MustParseAddrPort("10.96.2.3:80")
)

// attacks are all that the soak has. Their figures are those that broke the program once.
var attacks = []attack{
	{"loops", loops, ""},
	{"TIME_WAIT", timeWait, "sluice_tcp_accepted_connections_total"},
	{"ports in use", portsInUse, `sluice_tcp_connections_total{result="no_local_ports"}`},
	{"silent endpoints", silentEndpoints, `sluice_tcp_refused_connections_total{share="service_dials"}`},
	{"storm", storm, "sluice_tcp_accepted_connections_total"},
	{"greedy client", greedy, "sluice_tcp_accepted_connections_total"},
	{"UDP flood", udpFlood, `sluice_udp_flows_evicted_total{reason="service_share"}`},
	{"slow HTTP", slowHTTP, ""},
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
	testbed.Check(l.T, a.from.Sysctl("net.ipv4.tcp_tw_reuse", "1"))
	return a
}

func (a *attacker) service(name, addr, protocol string, port int, endpoints ...string) {
	a.Write(name+".yaml", testbed.ServiceManifest(name, addr, protocol, ""),
		testbed.SliceManifest(name, 1, port, protocol, endpoints...))
}

// loops has Services whose endpoints lead back to the program, and one client of each.
func loops(ctx context.Context, a *attacker) error {
	vip := looped.Addr().String()
	a.service("busy-loop", looped.String(), "TCP", int(looped.Port()), vip)
	a.service("busy-ring-0", "10.96.2.4:80", "TCP", 80, "10.96.2.5")
	a.service("busy-ring-1", "10.96.2.5:80", "TCP", 80, "10.96.2.4")
	a.service("busy-loop-dns", "10.96.2.6:53", "UDP", 53, "10.96.2.6")
	defer func() {
		for _, name := range []string{"busy-loop", "busy-ring-0", "busy-ring-1", "busy-loop-dns"} {
			_ = os.Remove(filepath.Join(a.Dir, name+".yaml"))
		}
	}()
	for ctx.Err() == nil {
		for _, to := range []string{looped.String(), "10.96.2.4:80"} {
			if c, err := a.from.Dial(ctx, "tcp", to); err == nil {
				_ = c.Close()
			}
		}
		if c, err := a.from.Dial(ctx, "udp", "10.96.2.6:53"); err == nil {
			_, _ = io.WriteString(c, "?") // what comes of it is what the victims see
			_ = c.Close()
		}
		pause(ctx, 100*time.Millisecond)
	}
	return nil
}

// timeWait has its clients end their connections first.
func timeWait(ctx context.Context, a *attacker) error {
	return knock{To: busy, Rate: 1500, Hold: 50 * time.Millisecond}.run(ctx, a.from)
}

// portsInUse holds all ports of the node towards one endpoint, and has new clients for it.
func portsInUse(ctx context.Context, a *attacker) error {
	return knock{To: busy, Rate: 1000, Hold: time.Hour, Most: nodePorts + 1500}.run(ctx, a.from)
}

// silentEndpoints has clients of a Service whose endpoint never answers.
func silentEndpoints(ctx context.Context, a *attacker) error {
	return knock{To: hole, Rate: 4000, Hold: 2500 * time.Millisecond}.run(ctx, a.from)
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
		pause(ctx, 5*time.Second)
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

// TestAttacks: whatever one tenant does, no client of the others sees an error, and a Service that comes meanwhile is
// served.
func TestAttacks(t *testing.T) {
	for _, atk := range attacks {
		t.Run(strings.ReplaceAll(atk.name, " ", "_"), func(t *testing.T) {
			s := newStage(t)
			s.start()
			s.victims.start()
			pause(t.Context(), time.Second)
			s.unharmed(t, "before")
			before := s.bitten(atk)
			ctx, cancel := context.WithTimeout(t.Context(), attackLasts)
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- atk.run(ctx, s.attacker) }()
			pause(ctx, attackLasts/2)
			s.newcomer(1)
			testbed.Check(t, <-ended)
			if atk.bite != "" && s.bitten(atk) == before {
				t.Errorf("%s did not move: the attack is none", atk.bite)
			}
			s.unharmed(t, "beside it")
			s.newcomer(2)
		})
	}
}

// attackLasts is how long each attack of TestAttacks goes on.
const attackLasts = 6 * time.Second
