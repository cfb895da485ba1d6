package conntrack

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// listen returns what comes on a host. The test ends when more comes than has room.
func listen(t *testing.T, h *testbed.Host, wants ...Want) (*Events, <-chan Event) {
	t.Helper()
	c := make(chan Event, 10000)
	var e *Events
	h.DoT(t, func() (err error) {
		e, err = Listen(func(e *Event) { c <- *e })
		return err
	})
	check(t, e.Want(wants...))
	t.Cleanup(func() { _ = e.Close() })
	return e, c
}

// next waits for an event of a kind, and of a state unless that is 0, and passes by others.
func next(t *testing.T, c <-chan Event, kind Kinds, state State) Event {
	t.Helper()
	deadline := time.After(testbed.Patience)
	for {
		select {
		case e := <-c:
			if e.Kind == kind && (state == 0 || e.State == state) {
				return e
			}
		case <-deadline:
			t.Fatalf("no event of kind %d and state %d", kind, state)
		}
	}
}

// TestEvents: what becomes of connections that the kernel forwards, of one that is answered and ends, and of one that
// is refused; nothing of others.
func TestEvents(t *testing.T) {
	tb := testbed.NewT(t, testbed.Config{Pods: 1})
	for _, ipv6 := range []bool{false, true} {
		service, pod := translating(t, tb, ipv6)
		check(t, tb.Node.Sysctl("net.netfilter.nf_conntrack_acct", "1"))
		check(t, tb.Node.Sysctl("net.netfilter.nf_conntrack_timestamp", "1"))
		_, c := listen(t, tb.Node, Want{New | Update | Destroy, To, []netip.Addr{service}})

		begun := time.Now()
		direct, err := tb.Client.Dial(t.Context(), "tcp", netip.AddrPortFrom(pod, 8080).String()) // not seen
		check(t, err)
		defer direct.Close()
		conn, err := tb.Client.Dial(t.Context(), "tcp", netip.AddrPortFrom(service, 80).String())
		check(t, err)
		e := next(t, c, New, 0)
		want := Flow{Src: netip.MustParseAddrPort(conn.LocalAddr().String()), Dst: netip.AddrPortFrom(service, 80),
			Replies: netip.AddrPortFrom(pod, 8080)}
		if e.Flow != want || e.Protocol != lb.TCP || e.State != TCPSynSent || e.Status&DstTranslated == 0 || e.ID == 0 {
			t.Errorf("new: %+v, want %+v", e, want)
		}
		next(t, c, Update, TCPSynRecv)
		if e := next(t, c, Update, TCPEstablished); e.Flow != want || e.Status&SeenReply == 0 {
			t.Errorf("established: %+v", e)
		}
		_, err = io.WriteString(conn, "ping")
		check(t, err)
		check(t, conn.(*net.TCPConn).CloseWrite())
		_, err = io.ReadAll(conn)
		check(t, err)
		check(t, conn.Close())
		next(t, c, Update, TCPTimeWait)
		if got := tb.Client.Ask("tcp", netip.AddrPortFrom(service, 81).String(), testbed.Patience); got != testbed.Refused {
			t.Errorf("the refusing endpoint: %s", got)
		}
		if e := next(t, c, Destroy, 0); e.State != TCPClose || e.Status&SeenReply != 0 || e.In.Packets != 1 {
			t.Errorf("refused: %+v", e) // a reset that is all the answer ends the entry at once
		}
		check(t, tb.Node.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
		if e := next(t, c, Destroy, 0); e.Flow != want || e.State != TCPTimeWait || e.In.Packets < 4 ||
			e.In.Bytes <= e.In.Packets*20 || e.Out.Bytes < 44 || e.Begun.Before(begun) || e.Ended.Before(e.Begun) ||
			time.Now().Before(e.Ended) {
			t.Errorf("ended: %+v", e)
		}
		if len(c) > 0 {
			t.Errorf("more has come: %+v", <-c)
		}
	}
}

// TestAddresses: what goes to the addresses comes, and of others only what is between them where they are too many.
func TestAddresses(t *testing.T) {
	h := testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node
	const many = 1000
	for _, ipv6 := range []bool{false, true} {
		base := netip.MustParseAddr(map[bool]string{false: "10.96.0.0", true: "2001:db8:96::"}[ipv6]).AsSlice()
		addr := func(i int) netip.Addr {
			binary.BigEndian.PutUint16(base[len(base)-2:], uint16(i))
			a, _ := netip.AddrFromSlice(base)
			return a
		}
		e, c := listen(t, h)
		end := addr(1<<16 - 1)
		for _, count := range []int{0, 1, 2, 3, maxRanges, 5 * maxRanges} {
			wanted := []netip.Addr{end}
			for _, i := range rand.Perm(many)[:count] {
				wanted = append(wanted, addr(i))
			}
			check(t, e.Want(Want{Kinds: Turn | Destroy, Of: Translated}, Want{New, To, wanted}))
			h.DoT(t, func() error {
				for i := range many {
					if err := createUDP(addr(i), 1000); err != nil {
						return err
					}
				}
				return errors.Join(createUDP(end, 1000), netlink.ConntrackTableFlush(netlink.ConntrackTable))
			})
			seen := make(map[netip.Addr]bool)
			for !seen[end] {
				seen[next(t, c, New, 0).Dst.Addr()] = true
			}
			for _, a := range wanted {
				if !seen[a] {
					t.Errorf("%d addresses: nothing of %s", count, a)
				}
			}
			if few := count < maxRanges; few && len(seen) != len(wanted) || len(seen) > many*9/10 {
				t.Errorf("ipv6 %v: %d addresses were seen, of %d", ipv6, len(seen), len(wanted))
			}
		}
	}
}

// createUDP has the kernel track a flow from a port.
func createUDP(to netip.Addr, port uint16) error {
	return made{protocol: unix.IPPROTO_UDP, to: netip.AddrPortFrom(to, 53).String()}.create(port)
}

// TestLost: what finds the buffer full is counted, and what comes later is handled. Close joins the goroutine.
func TestLost(t *testing.T) {
	testbed.NoLeaks(t)
	h := testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node
	to := netip.MustParseAddr("10.96.0.10")
	goOn, handled := make(chan struct{}), make(chan Event, 1<<16)
	var e *Events
	h.DoT(t, func() (err error) {
		e, err = Listen(func(e *Event) {
			<-goOn
			if e.Kind != Lost {
				handled <- *e
			}
		})
		return err
	})
	check(t, e.Want(Want{New, To, []netip.Addr{to}}))
	created := uint64(0)
	h.DoT(t, func() error {
		for e.Stats().Lost == 0 && created < 60000 {
			created++
			if err := createUDP(to, uint16(created)); err != nil {
				return err
			}
		}
		return nil
	})
	lost := e.Stats().Lost
	if lost == 0 {
		t.Fatalf("%d events have room", created)
	}
	t.Logf("%d events have room", created-lost)
	close(goOn)
	for range created - lost {
		<-handled
	}
	h.DoT(t, func() error { return createUDP(to, 65000) })
	if got := <-handled; got.Src.Port() != 65000 {
		t.Errorf("after the loss: %+v", got)
	}
	check(t, e.Close())
	if s := e.Stats(); s.Handled != created-lost+1 || s.Lost != lost {
		t.Errorf("%+v, want %d handled and %d lost", s, created-lost+1, lost)
	}
}

// TestEventsDoNotAllocate: reading a message leaves nothing to the garbage collector.
func TestEventsDoNotAllocate(t *testing.T) {
	attrs := made{protocol: unix.IPPROTO_TCP, to: "10.96.0.10:53", state: byte(TCPClose)}.attributes(1000)
	m := make([]byte, unix.SizeofNlMsghdr+nl.SizeofNfgenmsg, 1000)
	binary.NativeEndian.PutUint16(m[4:], unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_DELETE)
	m = append(m, attrs...)
	e, values := new(Event), nfnl.Parse(nil)
	if n := testing.AllocsPerRun(100, func() { e.parse(m, values) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if e.Kind != Destroy || e.State != TCPClose || e.Dst.Port() != 53 {
		t.Errorf("read as %+v", e)
	}
}
