package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

var (
	exitDrain = flag.Duration("exit-drain", 4*time.Second, "--drain-timeout in the tests of SIGTERM")
	exitLater = flag.Duration("exit-later", 2*time.Second, "how long after the end the late replacement starts there")
)

const (
	udpClients  = 20
	exitRate    = 50          // new connections a second, at all addresses together
	exitSilence = time.Second // longest silence of a UDP client
)

// visitors are clients that come while the program is replaced.
type visitors struct {
	*lab.Lab
	tcp, udp []string // addresses

	stop  chan struct{}
	load  sync.WaitGroup
	stall stall

	connections, failed, exchanges atomic.Int64
	silence                        atomic.Int64 // ns, the longest
}

// newVisitors makes a lab with Services of every kind of address: cluster IP and node port, of TCP and UDP, in both
// families, and one that requests a path.
func newVisitors(t *testing.T, path string) *visitors {
	v := &visitors{Lab: lab.New(t, testbed.Config{}), stop: make(chan struct{})}
	var six []string
	for _, pod := range v.Pods {
		testbed.Keep(t)(pod.WhoTCP(":8080"))
		testbed.Keep(t)(pod.EchoTCP(":7000"))
		testbed.Keep(t)(pod.EchoUDP(pod.Addr4.String() + ":5353"))
		testbed.Keep(t)(pod.EchoUDP(fmt.Sprintf("[%s]:5353", pod.Addr6)))
		six = append(six, fmt.Sprintf("%q", pod.Addr6))
	}
	for _, s := range []lab.Movable{
		{Name: "web", Addr: "10.96.0.80:80", Protocol: "TCP", Port: 8080, NodePort: 30080},
		{Name: "own", Addr: "10.96.0.81:80", Protocol: "TCP", Port: 8080, NodePort: 30081, Path: path},
		{Name: "echo", Addr: "10.96.0.82:7", Protocol: "TCP", Port: 7000},
		{Name: "dns", Addr: "10.96.0.10:53", Protocol: "UDP", Port: 5353, NodePort: 30053},
	} {
		v.Write(s.Name+".yaml", s.Manifest(),
			testbed.SliceManifest(s.Name, 1, s.Port, s.Protocol, testbed.Addrs(v.Pods...)...))
	}
	for name, s := range map[string]struct {
		addr, protocol string
		port           int
	}{"web6": {"2001:db8:96::80", "TCP", 8080}, "dns6": {"2001:db8:96::53", "UDP", 5353}} {
		service := testbed.ServiceManifest(name, "[six]:80", s.protocol, "")
		v.Write(name+".yaml", strings.Replace(service, "clusterIP: six", fmt.Sprintf("clusterIP: %q", s.addr), 1),
			strings.Replace(testbed.SliceManifest(name, 1, s.port, s.protocol, six...), "IPv4", "IPv6", 1))
	}
	node := v.Node.Addr4.String()
	v.tcp = []string{"10.96.0.80:80", node + ":30080", "10.96.0.81:80", "[2001:db8:96::80]:80", node + ":30081"}
	v.udp = []string{"10.96.0.10:53", node + ":30053", "[2001:db8:96::53]:80"}
	return v
}

// come starts the clients, from another host, a pod and the node itself, and returns when each UDP client has had an
// answer. What it returns ends them.
func (v *visitors) come(udpClients int) (end func()) {
	v.T.Helper()
	hosts := []*testbed.Host{v.Client, v.Pods[0], v.Node}
	v.load.Go(func() { v.stall.watch(v.stop, os.Getpid()) })
	v.load.Go(func() {
		next := time.NewTicker(time.Second / exitRate)
		defer next.Stop()
		for n := 0; ; n++ {
			select {
			case <-v.stop:
				return
			case <-next.C:
			}
			from, addr := hosts[n%len(hosts)], v.tcp[n/len(hosts)%len(v.tcp)]
			v.load.Go(func() { v.visit(from, addr) })
		}
	})
	var first sync.WaitGroup
	for n := range udpClients {
		first.Add(1)
		from, addr := hosts[n%len(hosts)], v.udp[n/len(hosts)%len(v.udp)]
		v.load.Go(func() { v.exchange(from, addr, sync.OnceFunc(first.Done)) })
	}
	first.Wait()
	return sync.OnceFunc(func() {
		close(v.stop)
		v.load.Wait()
	})
}

// visit opens a connection and wants a pod to answer.
func (v *visitors) visit(from *testbed.Host, addr string) {
	v.connections.Add(1)
	if name, err := from.Who(addr); err != nil || !strings.HasPrefix(name, "pod-") {
		v.failed.Add(1)
		v.T.Errorf("%s connects to %s: %q, %v", from, addr, name, err)
	}
}

// exchange asks from one port all the time, and wants an answer at least each exitSilence.
func (v *visitors) exchange(from *testbed.Host, addr string, answered func()) {
	defer answered()
	c, err := from.Dial(context.Background(), "udp", addr)
	if err != nil {
		v.T.Errorf("%s asks %s: %v", from, addr, err)
		return
	}
	defer c.Close()
	buf := make([]byte, 64)
	for last := time.Now(); ; {
		select {
		case <-v.stop:
			return
		default:
		}
		_, _ = c.Write([]byte("?")) // what a socket that is gone has refused before is reported here
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := c.Read(buf); err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				time.Sleep(5 * time.Millisecond) // refused, and there is nothing to wait for: a client asks again
			}
			continue
		}
		now := time.Now()
		silent := now.Sub(last)
		if silent > exitSilence {
			silent -= v.stall.during(last, now)
		}
		if silent > exitSilence {
			v.T.Errorf("%s had no answer of %s for %v", from, addr, silent)
		}
		most(&v.silence, silent)
		last = now
		v.exchanges.Add(1)
		answered()
		time.Sleep(20 * time.Millisecond) // there is nothing to wait for: it is load
	}
}

// again connects from the port of a connection that was reset, and talks.
func (v *visitors) again(was net.Conn) net.Conn {
	v.T.Helper()
	from, to := was.LocalAddr().(*net.TCPAddr).AddrPort(), was.RemoteAddr().String()
	_ = was.Close()
	c, err := v.Client.DialFrom(v.T.Context(), from, "tcp", to)
	if err != nil {
		v.T.Fatalf("connect from the port of a connection that was reset: %v", err)
	}
	(&testbed.Talker{T: v.T, Conn: c}).Echoes()
	return c
}

// TestExitRefusesNothing: with a long connection that keeps it draining the program is stopped and replaced, at once,
// after its end, and some time later. No client is refused, and no UDP client has no answer for long, until ten
// seconds after the replacement has started.
func TestExitRefusesNothing(t *testing.T) {
	testbed.Race(t)
	t.Parallel() // most of the time it waits
	for _, when := range []string{"at once", "at once by the handover socket", "after the end", "later"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			path := "iptables" // so that rules of that mode stay when the Services are back
			switch when {
			case "after the end":
				path = "userspace"
			case "at once by the handover socket", "later":
				path = "queue"
			}
			v := newVisitors(t, path)
			args := []string{"--drain-timeout", exitDrain.String(), "--udp-timeout", "5s"} // a busy machine ends no flow
			if strings.HasSuffix(when, "socket") {
				// Until the hand-over, which ends it.
				args = append(args, "--drain-timeout", testbed.Patience.String(), "--handover-socket", t.TempDir()+"/socket")
			}
			v.Start(args...)
			long, err := v.Client.Dial(t.Context(), "tcp", "10.96.0.82:7")
			if err != nil {
				t.Fatal(err)
			}
			talker := &testbed.Talker{T: t, Conn: long}
			talker.Echoes()
			end := v.come(udpClients)
			defer end()
			stopped := v.Process
			started := time.Now()
			v.Signal(syscall.SIGTERM)
			if strings.HasPrefix(when, "at once") {
				v.Launch(v.Command(append([]string{"--manifests", v.Dir}, args...)...))
				talker.Echoes()
			}
			ctx, cancel := context.WithTimeout(t.Context(), *exitDrain+testbed.Patience)
			defer cancel()
			if err := stopped.Wait(ctx); err != nil {
				t.Errorf("the program ended with %v, want success", err)
			}
			drained := time.Since(started)
			if strings.HasSuffix(when, "socket") {
				talker.Echoes() // it has been handed over
			} else {
				if drained < *exitDrain {
					t.Errorf("the program has ended after %v, before the connection that it had", drained)
				}
				long = v.again(long)
			}
			if when == "later" {
				time.Sleep(*exitLater) // that nothing runs meanwhile is what is tested
			}
			if !strings.HasPrefix(when, "at once") {
				v.Start(args...)
			} else if err := v.Process.Healthy(t.Context(), testbed.HealthURL); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Second) // the promise is about this time
			v.Eventually("every UDP client is in user space again", func() bool {
				return v.Metric(`sluice_active_connections{protocol="UDP"}`) == udpClients
			})
			end()
			t.Logf("ended after %v; %d connections, %d failed; %d exchanges, the longest silence %v; the longest wait for a CPU %v",
				drained, v.connections.Load(), v.failed.Load(), v.exchanges.Load(), time.Duration(v.silence.Load()), v.stall.longest())
			if got := v.Metric(`sluice_connections_total{protocol="TCP",result="established"}`); got == 0 {
				t.Error("the replacement has not taken the Services back to user space")
			}
			if tables := v.Output("nft", "list", "tables"); strings.Contains(tables, "sluice-services") {
				t.Errorf("the table that served meanwhile has stayed: %s", tables)
			}
			rules := v.Output("iptables-save", "-t", "nat")
			if strings.Contains(rules, "default/own cluster IP") != (path == "iptables") || strings.Contains(rules, "default/web ") {
				t.Errorf("rules after the replacement has started:\n%s", rules)
			}
			_ = long.Close()
		})
	}
}
