package redirect

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// expect asks for a frontend from the client ("host"), a pod or the node, and compares what
// came of it with what is wanted. It waits no longer than need be for that.
func (l *lab) expect(what, who string, f lb.Frontend, want string) {
	l.t.Helper()
	wait := patience
	if want == testbed.Dropped {
		wait = quiet
	}
	from := map[string]*testbed.Host{"host": l.Client, "pod": l.Pods[0], "node": l.Node}[who]
	got := from.Ask(f.Protocol.String(), f.Addr.String(), wait)
	if isAnswer(got) {
		got = "answered"
	}
	if got != want {
		l.t.Errorf("%s: %s asks %s: %s, want %s", what, who, f, got, want)
	}
}

// isAnswer reports whether a proxy of the lab said so: it says a port or an address.
func isAnswer(s string) bool {
	return s != "" && '0' <= s[0] && s[0] <= '9' || strings.HasPrefix(s, "[")
}

// screen builds a plan, frontend by frontend, and then asks them all at once.
type screen struct {
	*lab
	ipv6    bool
	plan    Plan
	udpPort uint16 // of the proxy
	port    uint16 // of the last frontend
	wait    sync.WaitGroup
	synced  chan struct{}
}

// add has the plan hold one more frontend, a cluster IP or a node port, TCP and
// UDP, and asks it when all are there.
func (x *screen) add(name string, nodePort bool, host, pod, node string, does ...func(lb.Frontend)) {
	x.port++
	for _, proto := range []lb.Protocol{lb.TCP, lb.UDP} {
		f := lb.Frontend{Protocol: proto, Addr: netip.AddrPortFrom(vip(x.ipv6, 1), x.port)}
		asked := f
		if nodePort {
			f.Addr = netip.AddrPortFrom(unspecified(x.ipv6), x.port)
			asked = x.onNode(f)
		}
		for _, do := range does {
			do(f)
		}
		for who, want := range map[string]string{"host": host, "pod": pod, "node": node} {
			x.wait.Go(func() {
				<-x.synced
				x.expect(name, who, asked, want)
			})
		}
	}
}

// onNode returns the frontend with the node port's number and an exact address.
func (x *screen) onNode(f lb.Frontend) lb.Frontend {
	f.Addr = netip.AddrPortFrom(nodeAddr[x.ipv6], f.Addr.Port())
	return f
}

// exactly has something done with that frontend.
func (x *screen) exactly(do func(lb.Frontend)) func(lb.Frontend) {
	return func(f lb.Frontend) { do(x.onNode(f)) }
}

func (x *screen) steer(f lb.Frontend) {
	if f.Protocol == lb.TCP {
		x.plan.TCP = append(x.plan.TCP, f.Addr)
	} else {
		x.plan.Ported = append(x.plan.Ported, Ported{f, x.udpPort})
	}
}

func (x *screen) listen(f lb.Frontend) {
	if f.Protocol == lb.TCP {
		serveTCP(x.t, fmt.Sprint(":", f.Addr.Port()))
	} else {
		serveUDP(x.t, fmt.Sprint(":", f.Addr.Port()))
	}
}

func (x *screen) accept(f lb.Frontend)  { x.plan.Accept = append(x.plan.Accept, f) }
func (x *screen) refuse(f lb.Frontend)  { x.plan.Refuse = append(x.plan.Refuse, f) }
func (x *screen) drop(f lb.Frontend)    { x.plan.Drop = append(x.plan.Drop, f) }
func (x *screen) outside(f lb.Frontend) { x.plan.DropOutside = append(x.plan.DropOutside, f) }

func (x *screen) only(sources ...netip.Prefix) func(lb.Frontend) {
	return func(f lb.Frontend) { x.plan.Restricted = append(x.plan.Restricted, Restricted{f, sources}) }
}

// TestScreen asks frontends of every kind, with every restriction, from everywhere.
func TestScreen(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		x := screen{lab: newLab(t), ipv6: v.ipv6, port: 30000, synced: make(chan struct{})}
		x.plan = Plan{TCPPort: serveTCP(t, ":0"), Inside: []netip.Prefix{podNet(v.ipv6), podNet(!v.ipv6)}}
		x.udpPort = serveUDP(t, ":0")
		host, pod := alone(clientAddr[v.ipv6]), alone(podAddr[v.ipv6])
		node := netip.PrefixFrom(nodeAddr[v.ipv6], host.Bits()-1) // with its second address
		everybody := netip.PrefixFrom(unspecified(v.ipv6), 0)
		const yes, no, never = "answered", testbed.Refused, testbed.Dropped

		x.add("steered", false, yes, yes, yes, x.steer)
		x.add("dropped", false, never, never, never, x.drop)
		x.add("outside", false, never, yes, yes, x.steer, x.outside)
		x.add("restricted to a host", false, yes, never, never, x.steer, x.only(host))
		x.add("restricted to pods", false, never, yes, never, x.steer, x.only(podNet(v.ipv6)))
		x.add("restricted to pods and the node", false, never, yes, yes, x.steer, x.only(node, pod))
		x.add("restricted to no client", false, never, never, never, x.steer, x.only())
		x.add("restricted to the other family", false, never, never, never, x.steer, x.only(podNet(!v.ipv6)))
		x.add("restricted to everybody", false, yes, yes, yes, x.steer, x.only(host, everybody))
		x.add("restricted and outside", false, never, yes, never, x.steer, x.outside, x.only(host, pod))
		x.add("restricted and dropped", false, never, never, never, x.drop, x.only(host))
		x.add("restricted and refused", false, no, never, never, x.refuse, x.only(host))
		x.add("refused outside", false, never, no, no, x.refuse, x.outside)
		x.add("refused", false, no, no, no, x.refuse)
		x.add("node port", true, yes, yes, yes, x.listen, x.accept)
		x.add("node port, outside", true, never, yes, yes, x.listen, x.accept, x.outside)
		x.add("node port, dropped", true, never, never, never, x.listen, x.drop)
		x.add("node port, refused", true, no, no, no, x.listen, x.refuse)
		x.add("node port, refused outside", true, never, no, no, x.refuse, x.outside)
		// An address of the node that is a frontend itself goes before a node port.
		x.add("steered at a dropped node port", true, yes, yes, yes, x.drop, x.exactly(x.steer))
		x.add("steered at an outside node port", true, yes, yes, yes, x.outside, x.exactly(x.steer))
		x.add("steered at a refused node port", true, yes, yes, yes, x.refuse, x.exactly(x.steer))
		x.add("restricted at a dropped node port", true, yes, never, never, x.drop, x.exactly(x.steer),
			x.exactly(x.only(host)))
		x.add("refused at a dropped node port", true, no, no, no, x.drop, x.exactly(x.refuse))
		x.add("refused at a node port", true, no, no, no, x.listen, x.accept, x.exactly(x.refuse))
		x.add("dropped at a node port", true, never, never, never, x.listen, x.accept, x.exactly(x.drop))
		x.add("accepted at a refused node port", true, yes, yes, yes, x.listen, x.refuse, x.exactly(x.accept))

		s := v.steerer()
		syncPlan(t, s, x.plan)
		verified(t, s, true, "after Sync")
		close(x.synced)
		x.wait.Wait()
	})
}

// TestLoopbackIsInside asks a node port that other hosts may not ask on loopback.
func TestLoopbackIsInside(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		newNode(t)
		port := serveTCP(t, ":0")
		syncPlan(t, v.steerer(), Plan{DropOutside: []lb.Frontend{tcp(netip.AddrPortFrom(unspecified(v.ipv6), port))}})
		loopback := map[bool]string{false: "127.0.0.1", true: "::1"}[v.ipv6]
		to := netip.AddrPortFrom(netip.MustParseAddr(loopback), port).String()
		if got := testbed.EnteredT(t).Ask("tcp", to, patience); got != to {
			t.Errorf("%s: %s", to, got)
		}
	})
}

// TestEverywhereInside has pods at every address.
func TestEverywhereInside(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		l := newLab(t)
		at := netip.AddrPortFrom(vip(v.ipv6, 1), 80)
		syncPlan(t, v.steerer(), Plan{
			TCPPort: serveTCP(t, ":0"), TCP: []netip.AddrPort{at},
			DropOutside: []lb.Frontend{tcp(at)}, Inside: []netip.Prefix{netip.PrefixFrom(unspecified(v.ipv6), 0)},
		})
		l.expect("at last", "host", tcp(at), "answered")
	})
}

// TestEstablishedGoOn has a connection, and a frontend that closes to it.
func TestEstablishedGoOn(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		l := newLab(t)
		port := testbed.Keep(t)(l.Node.EchoTCP(":0")).Addr.Port()
		at := netip.AddrPortFrom(vip(v.ipv6, 1), 80)
		open := Plan{TCPPort: port, TCP: []netip.AddrPort{at}}
		outside, restricted := open, open
		outside.DropOutside = []lb.Frontend{tcp(at)}
		restricted.Restricted = []Restricted{{Frontend: tcp(at)}}
		s := v.steerer()
		syncPlan(t, s, open)
		c, err := l.Client.Dial(t.Context(), "tcp", at.String())
		check(t, err)
		defer c.Close()
		for what, p := range map[string]Plan{"dropped": {TCPPort: port, Drop: []lb.Frontend{tcp(at)}},
			"outside": outside, "restricted": restricted, "refused": {TCPPort: port, Refuse: []lb.Frontend{tcp(at)}}} {
			syncPlan(t, s, p)
			(&testbed.Talker{T: t, Conn: c}).Echoes()
			want := testbed.Dropped
			if what == "refused" {
				want = testbed.Refused
			}
			l.expect("a new connection, "+what, "host", tcp(at), want)
		}
	})
}

// TestNeverOpen has a client that may not ask a frontend try without pause, while
// the frontend comes and goes.
func TestNeverOpen(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		l := newLab(t)
		at := netip.AddrPortFrom(vip(v.ipv6, 1), 80)
		open := Plan{TCPPort: serveTCP(t, ":0"), TCP: []netip.AddrPort{at}}
		gone := Plan{TCPPort: open.TCPPort}
		restricted, outside, dropped := open, open, gone
		restricted.Restricted = []Restricted{{Frontend: tcp(at)}}
		outside.DropOutside = []lb.Frontend{tcp(at)}
		dropped.Drop = []lb.Frontend{tcp(at)}
		plans := []Plan{gone, restricted, outside, gone, outside, restricted}
		if v.noSets { // one table goes before the other
			plans = []Plan{gone, restricted, dropped, gone, outside, dropped}
		}
		s := v.steerer()
		syncPlan(t, s, gone)
		tries := testbed.Repeat(t, 1, func() error {
			if got, err := l.Client.TryAsk("tcp", at.String(), 300*time.Microsecond); err == nil {
				return fmt.Errorf("answered: %q", got)
			}
			return nil
		})
		for changes := 0; changes < 10*len(plans) || tries.Done() < 500; changes++ {
			syncPlan(t, s, plans[changes%len(plans)])
		}
		tries.Stop()
		syncPlan(t, s, open) // the client could have been answered
		l.expect("at last", "host", tcp(at), "answered")
	})
}

// TestAlwaysOpen has a client that may ask a frontend throughout try without pause,
// while who else may ask changes.
func TestAlwaysOpen(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		l := newLab(t)
		at, pod := netip.AddrPortFrom(vip(v.ipv6, 1), 80), alone(podAddr[v.ipv6])
		inside := podNet(v.ipv6)
		// Another frontend is restricted throughout, see halves.
		other := Restricted{tcp(netip.AddrPortFrom(vip(v.ipv6, 2), 80)), []netip.Prefix{pod, inside}}
		open := Plan{TCPPort: serveTCP(t, ":0"), TCP: []netip.AddrPort{at}, Inside: []netip.Prefix{inside},
			Restricted: []Restricted{other}}
		only, anyPod, outside, both := open, open, open, open
		only.Restricted = []Restricted{other, {tcp(at), []netip.Prefix{pod}}}
		anyPod.Restricted = []Restricted{other, {tcp(at), []netip.Prefix{inside}}}
		outside.DropOutside = []lb.Frontend{tcp(at)}
		both.Restricted, both.DropOutside = only.Restricted, outside.DropOutside
		plans := []Plan{open, only, anyPod, outside, both}
		s := v.steerer()
		syncPlan(t, s, open)
		tries := testbed.Repeat(t, 1, func() error { return openAtOnce(l.Pods[0], at) })
		for tries.Done() < 100 {
			for _, from := range plans {
				for _, to := range plans {
					syncPlan(t, s, from)
					syncPlan(t, s, to)
				}
			}
		}
		tries.Stop()
	})
}

// openAtOnce connects without a packet being sent again. That is asked of the kernel: how
// long a connection takes is a matter of how busy the machine is, too.
func openAtOnce(from *testbed.Host, addr netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := from.Dial(ctx, "tcp", addr.String())
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.ReadAll(c); err != nil {
		return err
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	var info *unix.TCPInfo
	if cerr := raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO)
	}); cerr != nil {
		return cerr
	}
	if err == nil && info.Total_retrans > 0 {
		err = fmt.Errorf("%d packets were sent again", info.Total_retrans)
	}
	return err
}
