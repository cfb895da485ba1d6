package conntrack

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// translating has a node send what goes to port 80 of an address to port 8080 of a pod, and 81 to one that refuses.
func translating(t *testing.T, tb *testbed.Testbed, ipv6 bool) (service, pod netip.Addr) {
	t.Helper()
	program := testbed.IPTables{IPv6: ipv6}.Command()
	service, pod = testbed.VIP(ipv6, 80), tb.Pods[0].Addr(ipv6)
	testbed.Keep(t)(tb.Pods[0].EchoTCP(netip.AddrPortFrom(pod, 8080).String()))
	testbed.Keep(t)(tb.Pods[0].EchoUDP(netip.AddrPortFrom(pod, 8080).String()))
	for port, to := range map[uint16]uint16{80: 8080, 81: 8081} {
		for _, protocol := range []string{"tcp", "udp"} {
			tb.Node.Run(t, program, "-t", "nat", "-A", "PREROUTING", "-d", service.String(), "-p", protocol, "--dport",
				fmt.Sprint(port), "-j", "DNAT", "--to-destination", netip.AddrPortFrom(pod, to).String())
		}
	}
	return service, pod
}

// TestTurns: of a connection come its answer and its end, once, of a refused one and of a flow of UDP its end, and
// nothing of what is not translated.
func TestTurns(t *testing.T) {
	tb := testbed.NewT(t, testbed.Config{Pods: 1})
	for _, ipv6 := range []bool{false, true} {
		service, pod := translating(t, tb, ipv6)
		e, c := listen(t, tb.Node)
		at := func(port uint16) string { return netip.AddrPortFrom(service, port).String() }
		wants := func(kind Kinds, protocol lb.Protocol, state State) {
			t.Helper()
			select {
			case got := <-c:
				if got.Kind != kind || got.Protocol != protocol || got.State != state || got.Status&DstTranslated == 0 {
					t.Fatalf("%+v, want kind %d of %s in state %d", got, kind, protocol, state)
				}
			case <-time.After(testbed.Patience):
				t.Fatalf("nothing, want kind %d of %s in state %d", kind, protocol, state)
			}
		}
		deletes := func(protocol string) {
			t.Helper()
			family := map[bool]string{false: "ipv4", true: "ipv6"}[ipv6]
			tb.Node.Run(t, "conntrack", "-D", "-p", protocol, "-f", family, "--orig-dst", service.String())
		}
		for _, want := range []Want{{Kinds: Turn | Destroy, Of: Translated}, {Turn | Destroy, To, []netip.Addr{service}}} {
			check(t, e.Want(want))
			if got := tb.Client.Ask("tcp", netip.AddrPortFrom(pod, 1).String(), testbed.Patience); got != testbed.Refused {
				t.Errorf("without translation: %s", got)
			}
			conn, err := tb.Client.Dial(t.Context(), "tcp", at(80))
			check(t, err)
			wants(Update, lb.TCP, TCPSynRecv)
			check(t, conn.(*net.TCPConn).CloseWrite())
			_, err = io.ReadAll(conn)
			check(t, err)
			check(t, conn.Close())
			wants(Update, lb.TCP, TCPTimeWait)
			deletes("tcp") // which says nothing more
			conn, err = tb.Client.Dial(t.Context(), "tcp", at(80))
			check(t, err)
			wants(Update, lb.TCP, TCPSynRecv)
			deletes("tcp")
			wants(Destroy, lb.TCP, TCPEstablished)
			check(t, conn.Close())
			if got := tb.Client.Ask("udp", at(80), testbed.Patience); got != "?" {
				t.Errorf("by UDP: %q", got)
			}
			if got := tb.Client.Ask("tcp", at(81), testbed.Patience); got != testbed.Refused {
				t.Errorf("the refusing endpoint: %s", got)
			}
			wants(Destroy, lb.TCP, TCPClose)
			deletes("udp")
			wants(Destroy, lb.UDP, 0)
		}
		check(t, e.Close())
	}
}

// TestWants: of several wants each has what it has alone, in any order, and nothing comes that none has.
func TestWants(t *testing.T) {
	tb := testbed.NewT(t, testbed.Config{Pods: 1})
	service, pod := translating(t, tb, false)
	turns := Want{Kinds: Turn | Destroy, Of: Translated}
	ends := Want{Destroy, To, []netip.Addr{pod}}
	e, c := listen(t, tb.Node)
	talk := func(to netip.Addr, port uint16) {
		t.Helper()
		conn, err := tb.Client.Dial(t.Context(), "tcp", netip.AddrPortFrom(to, port).String())
		check(t, err)
		check(t, conn.(*net.TCPConn).CloseWrite())
		_, err = io.ReadAll(conn)
		check(t, err)
		check(t, conn.Close())
	}
	forget := func() {
		t.Helper()
		testbed.Eventually(t, "the connection has ended", func() bool {
			return strings.Contains(tb.Node.Run(t, "conntrack", "-L", "-p", "tcp"), "TIME_WAIT")
		})
		tb.Node.Run(t, "conntrack", "-D", "-p", "tcp")
	}
	for name, test := range map[string]struct {
		wants []Want
		want  string // kind and port, as they come
	}{
		"none":   {nil, ""},
		"one":    {[]Want{turns}, "update 80, update 80, "},
		"other":  {[]Want{ends}, "destroy 8080, "},
		"both":   {[]Want{turns, ends}, "update 80, update 80, destroy 8080, "},
		"turned": {[]Want{ends, {}, turns}, "update 80, update 80, destroy 8080, "},
		"all":    {[]Want{turns, ends, {Kinds: Destroy, Of: Any}}, "update 80, update 80, destroy 80, destroy 8080, "},
	} {
		check(t, e.Want(test.wants...))
		talk(service, 80)
		forget()
		talk(pod, 8080)
		forget()
		check(t, e.Want(Want{Kinds: New, Of: Any}))
		tb.Client.Ask("udp", netip.AddrPortFrom(service, 80).String(), testbed.Patience)
		got := ""
		for last := (Event{}); last.Kind != New; {
			select {
			case last = <-c:
			case <-time.After(testbed.Patience):
				t.Fatalf("%s: the last event does not come", name)
			}
			if kind := map[Kinds]string{Update: "update", Destroy: "destroy"}[last.Kind]; kind != "" {
				got += fmt.Sprintf("%s %d, ", kind, last.Dst.Port())
			}
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
		tb.Node.Run(t, "conntrack", "-D", "-p", "udp")
	}
}

// TestConn: entries are found one by one, and deleted if they are the same.
func TestConn(t *testing.T) {
	h := testbed.NewHostsT(t, "host")[0]
	var conn *Conn
	h.DoT(t, func() (err error) { conn, err = Open(); return err })
	t.Cleanup(conn.Close)
	for _, to := range []string{"10.96.0.10:53", "[2001:db8:96::10]:53"} {
		m := made{protocol: 6, to: to, state: byte(TCPEstablished)}
		h.DoT(t, func() error { return m.create(1000) })
		f := m.flow(1000)
		e, ok, err := conn.Find(lb.TCP, f.Src, f.Dst)
		if err != nil || !ok || e.Flow != f || e.State != TCPEstablished {
			t.Fatalf("%+v, %v, %v", e, ok, err)
		}
		if _, ok, err := conn.Find(lb.UDP, f.Src, f.Dst); ok || err != nil {
			t.Errorf("of another protocol: %v, %v", ok, err)
		}
		other := e
		other.ID++
		if ok, err := conn.Delete(&other); ok || err != nil {
			t.Errorf("another entry is deleted: %v, %v", ok, err)
		}
		if ok, err := conn.Delete(&e); !ok || err != nil {
			t.Errorf("it is not deleted: %v, %v", ok, err)
		}
		if _, ok, err := conn.Find(lb.TCP, f.Src, f.Dst); ok || err != nil {
			t.Errorf("after that: %v, %v", ok, err)
		}
	}
}
