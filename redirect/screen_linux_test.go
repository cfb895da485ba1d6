package redirect

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/lb"
)

// Those who ask in TestScreen.
var askers = []string{"host", "pod", "node"}

// ask asks for a frontend from another host, a pod or the node, and returns what
// came of it, waiting no longer than need be for what is expected.
func (l *lab) ask(who string, f lb.Frontend, want string) string {
	ns, local := l.client, netip.Addr{}
	switch ipv6 := f.Addr.Addr().Is6(); who {
	case "host":
		local = clientAddr[ipv6]
	case "pod":
		local = podAddr[ipv6]
	case "node":
		ns = l.node
	}
	wait := patience
	if want == "silent" {
		wait = quiet
	}
	err := within(ns, func() error {
		if f.Protocol == lb.TCP {
			_, err := askTCPFrom(local, f.Addr, wait)
			return err
		}
		if !local.IsValid() {
			local = unspecified(f.Addr.Addr().Is6())
		}
		_, err := askUDPFrom(netip.AddrPortFrom(local, 0), f.Addr, wait)
		return err
	})
	switch {
	case err == nil:
		return "answered"
	case refused(err):
		return "refused"
	case silent(err):
		return "silent"
	}
	return err.Error()
}

// TestScreen asks frontends of every kind, with every restriction, from everywhere.
func TestScreen(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		l := newLab(t)
		node, host, pod := alone(nodeAddr[v.ipv6]), alone(clientAddr[v.ipv6]), alone(podAddr[v.ipv6])
		plan := Plan{TCPPort: serveTCP(t, ":0"), Inside: []netip.Prefix{podNet(v.ipv6), podNet(!v.ipv6)}}
		udpPort := serveUDP(t, ":0")
		var wait sync.WaitGroup
		defer wait.Wait()
		synced := make(chan struct{})
		next := uint16(30000)
		// expect has the plan hold one more frontend, a cluster IP or a node port,
		// TCP and UDP, and asks it when all are there.
		expect := func(name string, nodePort bool, add func(lb.Frontend), host, pod, node string) {
			next++
			for _, proto := range []lb.Protocol{lb.TCP, lb.UDP} {
				f := lb.Frontend{Protocol: proto, Addr: netip.AddrPortFrom(vip(v.ipv6, 1), next)}
				asked := f
				if nodePort {
					f.Addr = netip.AddrPortFrom(unspecified(v.ipv6), next)
					asked.Addr = netip.AddrPortFrom(nodeAddr[v.ipv6], next)
				}
				add(f)
				for i, want := range []string{host, pod, node} {
					wait.Go(func() {
						<-synced
						if got := l.ask(askers[i], asked, want); got != want {
							t.Errorf("%s: %s asks %s: %s, want %s", name, askers[i], asked, got, want)
						}
					})
				}
			}
		}
		steer := func(f lb.Frontend) {
			if f.Protocol == lb.TCP {
				plan.TCP = append(plan.TCP, f.Addr)
			} else {
				plan.Ported = append(plan.Ported, Ported{f, udpPort})
			}
		}
		onNode := func(f lb.Frontend) lb.Frontend {
			f.Addr = netip.AddrPortFrom(nodeAddr[v.ipv6], f.Addr.Port())
			return f
		}
		listen := func(f lb.Frontend) {
			if f.Protocol == lb.TCP {
				serveTCP(t, fmt.Sprint(":", f.Addr.Port()))
			} else {
				serveUDP(t, fmt.Sprint(":", f.Addr.Port()))
			}
		}
		accept := func(f lb.Frontend) { listen(f); plan.Accept = append(plan.Accept, f) }
		refuse := func(f lb.Frontend) { plan.Refuse = append(plan.Refuse, f) }
		drop := func(f lb.Frontend) { plan.Drop = append(plan.Drop, f) }
		outside := func(f lb.Frontend) { plan.DropOutside = append(plan.DropOutside, f) }
		only := func(sources ...netip.Prefix) func(lb.Frontend) {
			return func(f lb.Frontend) { plan.Restricted = append(plan.Restricted, Restricted{f, sources}) }
		}
		all := func(fs ...func(lb.Frontend)) func(lb.Frontend) {
			return func(f lb.Frontend) {
				for _, do := range fs {
					do(f)
				}
			}
		}
		const yes, no, never = "answered", "refused", "silent"
		expect("steered", false, steer, yes, yes, yes)
		expect("dropped", false, drop, never, never, never)
		expect("dropped, listened on", true, all(listen, drop), never, never, never)
		expect("outside", false, all(steer, outside), never, yes, yes)
		expect("restricted to a host", false, all(steer, only(host)), yes, never, never)
		expect("restricted to pods", false, all(steer, only(podNet(v.ipv6))), never, yes, never)
		expect("restricted to pods and the node", false, all(steer, only(node, pod)), never, yes, yes)
		expect("restricted to nobody", false, all(steer, only()), never, never, never)
		expect("restricted to the other family", false, all(steer, only(podNet(!v.ipv6))), never, never, never)
		expect("restricted to everybody", false, all(steer, only(host, netip.PrefixFrom(unspecified(v.ipv6), 0))), yes, yes, yes)
		expect("restricted and outside", false, all(steer, outside, only(host, pod)), never, yes, never)
		expect("restricted and dropped", false, all(drop, only(host)), never, never, never)
		expect("restricted and refused", false, all(refuse, only(host)), no, never, never)
		expect("refused outside", false, all(refuse, outside), never, no, no)
		expect("refused", false, refuse, no, no, no)
		expect("node port", true, accept, yes, yes, yes)
		expect("node port, outside", true, all(accept, outside), never, yes, yes)
		expect("node port, refused", true, all(listen, refuse), no, no, no)
		expect("node port, refused outside", true, all(refuse, outside), never, no, no)
		// An address of the node that is a frontend itself goes before a node port.
		expect("steered at a dropped node port", true, all(drop, func(f lb.Frontend) { steer(onNode(f)) }), yes, yes, yes)
		expect("steered at an outside node port", true, all(outside, func(f lb.Frontend) { steer(onNode(f)) }), yes, yes, yes)
		expect("steered at a refused node port", true, all(refuse, func(f lb.Frontend) { steer(onNode(f)) }), yes, yes, yes)
		expect("refused at a dropped node port", true, all(drop, func(f lb.Frontend) { refuse(onNode(f)) }), no, no, no)
		expect("refused at a node port", true, all(accept, func(f lb.Frontend) { refuse(onNode(f)) }), no, no, no)
		expect("dropped at a node port", true, all(accept, func(f lb.Frontend) { drop(onNode(f)) }), never, never, never)
		expect("accepted at a refused node port", true, all(listen, refuse, func(f lb.Frontend) { plan.Accept = append(plan.Accept, onNode(f)) }), yes, yes, "refused")
		expect("restricted at a dropped node port", true, all(drop, func(f lb.Frontend) { steer(onNode(f)); only(host)(onNode(f)) }), yes, never, never)

		s := v.steerer()
		syncPlan(t, s, plan)
		if ok, err := s.Verify(t.Context()); !ok || err != nil {
			t.Errorf("Verify = %v, %v", ok, err)
		}
		close(synced)
	})
}

// TestLoopbackIsInside asks a node port that other hosts may not ask on loopback.
func TestLoopbackIsInside(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		newNode(t)
		port := serveTCP(t, ":0")
		syncPlan(t, v.steerer(), Plan{DropOutside: []lb.Frontend{tcp(netip.AddrPortFrom(unspecified(v.ipv6), port))}})
		loopback := map[bool]string{false: "127.0.0.1", true: "::1"}[v.ipv6]
		if _, err := askTCP(netip.AddrPortFrom(netip.MustParseAddr(loopback), port)); err != nil {
			t.Error(err)
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
		if got := l.ask("host", tcp(at), "answered"); got != "answered" {
			t.Error(got)
		}
	})
}

// TestEstablishedGoOn has a connection, and a frontend that closes to it.
func TestEstablishedGoOn(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		l := newLab(t)
		ln, err := net.Listen("tcp", ":0")
		check(t, err)
		var echo sync.WaitGroup
		t.Cleanup(func() { ln.Close(); echo.Wait() })
		echo.Go(func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				echo.Go(func() { io.Copy(c, c); c.Close() })
			}
		})
		port := netip.MustParseAddrPort(ln.Addr().String()).Port()
		at := netip.AddrPortFrom(vip(v.ipv6, 1), 80)
		open := Plan{TCPPort: port, TCP: []netip.AddrPort{at}}
		outside, restricted := open, open
		outside.DropOutside = []lb.Frontend{tcp(at)}
		restricted.Restricted = []Restricted{{Frontend: tcp(at)}}
		s := v.steerer()
		syncPlan(t, s, open)
		var c net.Conn
		check(t, l.onClient(func() (err error) { c, err = net.DialTimeout("tcp", at.String(), patience); return err }))
		defer c.Close()
		for what, p := range map[string]Plan{"dropped": {TCPPort: port, Drop: []lb.Frontend{tcp(at)}},
			"outside": outside, "restricted": restricted, "refused": {TCPPort: port, Refuse: []lb.Frontend{tcp(at)}}} {
			syncPlan(t, s, p)
			c.SetDeadline(time.Now().Add(patience))
			if _, err := fmt.Fprintln(c, what); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			b := make([]byte, len(what)+1)
			if _, err := io.ReadFull(c, b); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			want := "silent"
			if what == "refused" {
				want = "refused"
			}
			if got := l.ask("host", tcp(at), want); got != want {
				t.Errorf("%s: a new connection is %s", what, got)
			}
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
		ctx, stop := context.WithCancel(t.Context())
		var tries atomic.Int64
		done := make(chan error, 1)
		go func() {
			done <- l.onClient(func() error {
				for ; ctx.Err() == nil; tries.Add(1) {
					if got, err := askTCPFrom(netip.Addr{}, at, 300*time.Microsecond); err == nil {
						return fmt.Errorf("answered: %q", got)
					}
				}
				return nil
			})
		}()
		for changes := 0; (changes < 10*len(plans) || tries.Load() < 500) && len(done) == 0; changes++ {
			syncPlan(t, s, plans[changes%len(plans)])
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		syncPlan(t, s, open) // the client could have been answered
		if got := l.ask("host", tcp(at), "answered"); got != "answered" {
			t.Error(got)
		}
	})
}
