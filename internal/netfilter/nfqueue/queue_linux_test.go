package nfqueue

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nft"
	"github.com/sluice-lb/sluice/internal/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

const (
	mask = 0xffff0000
	port = 80
)

// rules sends what goes to the port to queues, and what comes out with a number to the port that it stands for.
func rules(t *testing.T, ipv6 bool, ports map[uint32]uint16) {
	t.Helper()
	x := table("queued", ipv6, ports)
	if err := x.Write(); err != nil {
		t.Fatal(err)
	}
	if ok, err := x.Verify(t.Context()); !ok || err != nil {
		t.Errorf("Verify: %v, %v", ok, err)
	}
}

func table(name string, ipv6 bool, ports map[uint32]uint16) *nft.Table {
	x := &nft.Table{Name: name, IPv6: ipv6}
	x.AddSet(nft.Set{Name: "numbered", Key: []nft.Field{nft.Mark}, Data: []nft.Field{nft.Address, nft.Port}})
	addr := loopback(ipv6)
	for n, p := range ports {
		x.Add("numbered", nft.Element{Key: nft.Key(n << 16), Data: nft.Key(addr, p)}, 1)
	}
	r := func() *nft.Builder { return nft.NewRule(ipv6) }
	to := func() *nft.Builder { return r().Is(nft.DestinationPort, true, nft.Key(uint16(port))) }
	x.SetChain("ask", &nft.Hook{Type: "filter", Number: unix.NF_INET_LOCAL_OUT, Priority: -110, New: true}, []nft.Rule{
		to().Unconfirmed().Queue(nft.Queues{First: 7, Count: 2, Target: true}).Rule(""),
	})
	x.SetChain("nat", &nft.Hook{Type: "nat", Number: unix.NF_INET_LOCAL_OUT, Priority: -105}, []nft.Rule{
		to().Map("numbered", nft.MarkWithin(mask)).SetMark(mask, false).DNAT().Rule(""),
		to().DNATTo(netip.AddrPortFrom(addr, 1000)).Rule(""), // without a process
	})
	return x
}

func loopback(ipv6 bool) netip.Addr {
	if ipv6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// decider sends flows to 1 and 2 in turn, and keeps what it was asked.
type decider struct {
	mu    sync.Mutex
	asked []Packet
}

func (d *decider) decide(p *Packet) Verdict {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, *p)
	return Verdict{Action: Accept, Mark: p.Mark&^mask | uint32(1+len(d.asked)%2)<<16}
}

// TestQueues: while a process listens each flow is asked about once, gets where the verdict says, and others of its
// packets are not asked about; before and after it goes where rules say.
func TestQueues(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		for _, network := range []string{"tcp", "udp"} {
			t.Run(fmt.Sprint(network, ", ipv6 ", ipv6), func(t *testing.T) { asks(t, network, ipv6) })
		}
	}
}

func asks(t *testing.T, network string, ipv6 bool) {
	h := testbed.NewHostsT(t, "host")[0]
	addr := loopback(ipv6)
	at := func(p uint16) string { return netip.AddrPortFrom(addr, p).String() }
	for _, p := range []uint16{1000, 1001, 1002} {
		serve(t, h, network, at(p))
	}
	h.DoT(t, func() error { rules(t, ipv6, map[uint32]uint16{1: 1001, 2: 1002}); return nil })
	ask := func() string {
		t.Helper()
		if network == "udp" { // one that has the ports of another by chance is of its flow
			h.Run(t, "conntrack", "-F")
		}
		return h.Ask(network, at(port), testbed.Patience)
	}
	wants := func(want string) {
		t.Helper()
		if got := ask(); got != want {
			t.Errorf("asked: %q, want %q", got, want)
		}
	}
	wants("1000")
	d := new(decider)
	var q *Queues
	h.DoT(t, func() (err error) { q, err = Open(7, 2, d.decide, nil); return err })
	h.DoT(t, func() error {
		if _, err := Open(7, 1, d.decide, nil); !errors.Is(err, syscall.EPERM) {
			t.Errorf("Open of what another has: %v, want EPERM", err)
		}
		return nil
	})
	const flows = 20
	for i := range flows {
		wants([]string{"1002", "1001"}[i%2])
	}
	testbed.Check(t, q.Close())
	wants("1000")
	if s := q.Stats(); s != (Stats{Packets: flows}) {
		t.Errorf("%+v, want %d packets", s, flows)
	}
	for _, p := range d.asked {
		want := netip.AddrPortFrom(addr, port)
		if p.Asked != want || p.Client.Addr() != addr || p.Client.Port() == 0 || p.Mark != 0 {
			t.Errorf("asked about %+v, want %s", p, want)
		}
	}
}

// TestBroken: where the socket of a queue fails no packet waits for it: rules decide.
func TestBroken(t *testing.T) {
	h := testbed.NewHostsT(t, "host")[0]
	addr := loopback(false)
	at := func(p uint16) string { return netip.AddrPortFrom(addr, p).String() }
	serve(t, h, "tcp", at(1000))
	h.DoT(t, func() error { rules(t, false, nil); return nil })
	var all [2]*Queues
	opened := make(chan struct{})
	for i := range all {
		h.DoT(t, func() (err error) {
			all[i], err = Open(7+uint16(i), 1, func(p *Packet) Verdict {
				<-opened
				all[i].list[0].errno = syscall.EIO
				return Verdict{Action: Accept, Mark: p.Mark}
			}, nil)
			return err
		})
	}
	close(opened)
	for range 20 { // the first ones are asked about
		if got := h.Ask("tcp", at(port), testbed.Patience); got != "1000" {
			t.Fatalf("asked: %q, want that of the rules", got)
		}
	}
	failed := 0
	for _, q := range all {
		if errors.Is(q.Close(), syscall.EIO) {
			failed++
		}
		if s := q.Stats(); s.Packets > 2 {
			t.Errorf("%+v, want two packets for each queue at most", s)
		}
	}
	if failed == 0 {
		t.Error("no queue says what has failed")
	}
}

// TestRepeated: what a client sends before the first packet of its flow is decided goes where that goes, however long
// it is; what a flow sends later, when its entry has gone, is asked about anew.
func TestRepeated(t *testing.T) {
	h := testbed.NewHostsT(t, "host")[0]
	addr := loopback(false)
	at := func(p uint16) string { return netip.AddrPortFrom(addr, p).String() }
	for _, p := range []uint16{1001, 1002} {
		serve(t, h, "udp", at(p))
	}
	h.DoT(t, func() error { rules(t, false, map[uint32]uint16{1: 1001, 2: 1002}); return nil })
	d, sent := new(decider), make(chan struct{})
	var q *Queues
	h.DoT(t, func() (err error) {
		q, err = Open(7, 2, func(p *Packet) Verdict { <-sent; return d.decide(p) }, nil)
		return err
	})
	c, err := h.Dial(t.Context(), "udp", at(port))
	testbed.Check(t, err)
	defer c.Close()
	testbed.Check(t, c.SetDeadline(time.Now().Add(testbed.Patience)))
	answer := func() string {
		t.Helper()
		b := make([]byte, 64)
		n, err := c.Read(b)
		testbed.Check(t, err)
		return string(b[:n])
	}
	runtime.LockOSThread() // the thread ends with the test: it has one core, and so one queue
	var cores, core unix.CPUSet
	testbed.Check(t, unix.SchedGetaffinity(0, &cores))
	for i := 0; core.Count() == 0; i++ {
		if cores.IsSet(i) {
			core.Set(i)
		}
	}
	testbed.Check(t, unix.SchedSetaffinity(0, &core))
	const both = 2
	for n := range both {
		_, err := c.Write([]byte(strings.Repeat("?", 1+n)))
		testbed.Check(t, err)
	}
	close(sent)
	if first, second := answer(), answer(); first != "1002" || second != "1002" {
		t.Errorf("two datagrams: %q and %q, want 1002", first, second)
	}
	testbed.Eventually(t, "it goes elsewhere without its entry", func() bool {
		h.Run(t, "conntrack", "-F")
		_, err := c.Write([]byte("?"))
		testbed.Check(t, err)
		return answer() == "1001"
	})
	testbed.Check(t, q.Close())
}

// TestOthersWrite: what is in a queue stays there while the next process tries rules that ask, and writes them anew.
func TestOthersWrite(t *testing.T) {
	h := testbed.NewHostsT(t, "host")[0]
	at := func(p uint16) string { return netip.AddrPortFrom(loopback(false), p).String() }
	serve(t, h, "udp", at(1001))
	ports := map[uint32]uint16{1: 1001}
	h.DoT(t, func() error { rules(t, false, ports); return nil })
	asked, decided := make(chan struct{}, 1), make(chan struct{})
	var q *Queues
	h.DoT(t, func() (err error) {
		q, err = Open(7, 2, func(*Packet) Verdict {
			asked <- struct{}{}
			<-decided
			return Verdict{Action: Accept, Mark: 1 << 16}
		}, nil)
		return err
	})
	answer := make(chan string)
	go func() { answer <- h.Ask("udp", at(port), testbed.Patience) }()
	<-asked
	h.DoT(t, func() error {
		rules(t, false, ports)
		return table("trial", false, ports).Try()
	})
	close(decided)
	if got := <-answer; got != "1001" {
		t.Errorf("a datagram that was in the queue: %q, want 1001", got)
	}
	testbed.Check(t, q.Close())
}

// TestFull: what finds a queue full goes on as rules say, at once, and is counted; the others wait, and are not many.
func TestFull(t *testing.T) {
	h := testbed.NewHostsT(t, "host")[0]
	addr := loopback(false)
	at := func(p uint16) string { return netip.AddrPortFrom(addr, p).String() }
	var arrived [2]atomic.Int64 // by rules, by verdicts
	for i := range arrived {
		pc, err := h.ListenPacket(t.Context(), "udp", at(uint16(1000+i)))
		testbed.Check(t, err)
		t.Cleanup(func() { _ = pc.Close() })
		raw, err := pc.(syscall.Conn).SyscallConn()
		testbed.Check(t, err)
		testbed.Check(t, raw.Control(func(fd uintptr) { // for all of them
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
		}))
		testbed.Check(t, err)
		go func() {
			for b := make([]byte, 1); ; arrived[i].Add(1) {
				if _, _, err := pc.ReadFrom(b); err != nil {
					return
				}
			}
		}()
	}
	h.DoT(t, func() error { rules(t, false, map[uint32]uint16{1: 1001}); return nil })
	sent := make(chan struct{})
	var q *Queues
	h.DoT(t, func() (err error) {
		q, err = Open(7, 2, func(*Packet) Verdict { <-sent; return Verdict{Action: Accept, Mark: 1 << 16} }, nil)
		return err
	})
	const flows, wait = 3000, 700 // in each queue
	to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, port))
	for i := range uint16(flows) { // the kernel drops what has the ports of one that waits, and another way
		c, err := h.ListenPacket(t.Context(), "udp", at(20000+i))
		testbed.Check(t, err)
		_, err = c.WriteTo([]byte("?"), to)
		testbed.Check(t, errors.Join(err, c.Close()))
	}
	testbed.Eventually(t, "most have gone on", func() bool { return arrived[0].Load() >= flows-2*wait })
	close(sent)
	testbed.Eventually(t, "those that waited go on", func() bool { return arrived[1].Load() > wait/5 })
	testbed.Check(t, q.Close())
	if s := q.Stats(); s.Packets > 2*wait || s.Missed > flows-s.Packets {
		t.Errorf("%+v, and %d by rules", s, arrived[0].Load())
	}
}

// serve has a port say which it is.
func serve(t *testing.T, h *testbed.Host, network, at string) {
	t.Helper()
	port := at[strings.LastIndex(at, ":")+1:]
	testbed.Keep(t)(h.Answer(network, at, func(netip.AddrPort) string { return port }))
}

// TestExtensionHeaders: a packet of IPv6 is asked about whatever headers precede its ports, and does not get around
// that by more of them than are read.
func TestExtensionHeaders(t *testing.T) {
	h := testbed.NewHostsT(t, "host")[0]
	addr := loopback(true)
	at := func(p uint16) string { return netip.AddrPortFrom(addr, p).String() }
	serve(t, h, "udp", at(1000))
	serve(t, h, "udp", at(1001))
	h.DoT(t, func() error { rules(t, true, map[uint32]uint16{1: 1001}); return nil })
	var q *Queues
	h.DoT(t, func() (err error) {
		q, err = Open(7, 2, func(p *Packet) Verdict { return Verdict{Action: Accept, Mark: p.Mark | 1<<16} }, nil)
		return err
	})
	for _, test := range []struct {
		size int // of the options
		want string
	}{{8, "1001"}, {192, "1001"}, {264, ""}} {
		c, err := h.Dial(t.Context(), "udp", at(port))
		testbed.Check(t, err)
		defer c.Close()
		options := make([]byte, test.size)
		options[1] = byte(test.size/8 - 1)
		const unknown = 0x1e // an option that is for experiments, and is passed over
		for at := 2; at < test.size; at += 2 + int(options[at+1]) {
			options[at], options[at+1] = unknown, byte(min(test.size-at-2, 200))
		}
		raw, err := c.(syscall.Conn).SyscallConn()
		testbed.Check(t, err)
		testbed.Check(t, raw.Control(func(fd uintptr) {
			err = unix.SetsockoptString(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, string(options))
		}))
		testbed.Check(t, err)
		_, err = c.Write([]byte("?"))
		testbed.Check(t, err)
		if test.want == "" {
			testbed.Eventually(t, "it is dropped", func() bool { return q.Stats().Odd == 1 })
			testbed.Check(t, c.SetDeadline(time.Now().Add(50*time.Millisecond)))
		} else {
			testbed.Check(t, c.SetDeadline(time.Now().Add(testbed.Patience)))
		}
		b := make([]byte, 64)
		if n, err := c.Read(b); string(b[:n]) != test.want {
			t.Errorf("%d bytes of options: %q, %v, want %q", test.size, b[:n], err, test.want)
		}
	}
	testbed.Check(t, q.Close())
}

// TestParse: headers that are short or have options are read as they are, and nothing reads beyond them.
func TestParse(t *testing.T) {
	at, to := netip.MustParseAddrPort("192.0.2.1:4660"), netip.MustParseAddrPort("192.0.2.2:80")
	at6, to6 := netip.MustParseAddrPort("[2001:db8::1]:4660"), netip.MustParseAddrPort("[2001:db8::2]:80")
	ports := []byte{0x12, 0x34, 0, port}
	v4 := func(protocol byte, rest ...byte) []byte { // with options
		b := append([]byte{0x46, 3: 99, 9: protocol, 23: 0}, ports...)
		copy(b[12:], append(at.Addr().AsSlice(), to.Addr().AsSlice()...))
		return append(b, rest...)
	}
	v6 := func(protocol byte, headers []byte, rest ...byte) []byte {
		b := append(append([]byte{0x60, 5: 99, 6: protocol, 39: 0}, headers...), ports...)
		copy(b[8:], append(at6.Addr().AsSlice(), to6.Addr().AsSlice()...))
		return append(b, rest...)
	}
	tcp := func(flags byte) []byte { return []byte{9: flags} }
	sctp := func(chunk byte) []byte { return []byte{8: chunk} }
	const udp, syn, ack = unix.IPPROTO_UDP, 2, 16
	every := []byte{unix.IPPROTO_ROUTING, 0, 7: 0, unix.IPPROTO_FRAGMENT, 1, 23: 0, unix.IPPROTO_DSTOPTS, 0, 0, 1, 31: 0,
		unix.IPPROTO_AH, 0, 39: 0, unix.IPPROTO_TCP, 1, 51: 0}
	for _, test := range []struct {
		b    []byte
		want Packet
	}{
		{v4(udp), Packet{Protocol: udp, Client: at, Asked: to}},
		{v4(unix.IPPROTO_TCP, tcp(syn)...), Packet{Protocol: unix.IPPROTO_TCP, Client: at, Asked: to}},
		{v4(unix.IPPROTO_TCP, tcp(ack)...), Packet{Protocol: unix.IPPROTO_TCP, Client: at, Asked: to, Stray: true}},
		{v6(unix.IPPROTO_SCTP, nil, sctp(1)...), Packet{Protocol: unix.IPPROTO_SCTP, Client: at6, Asked: to6}},
		{v6(unix.IPPROTO_SCTP, nil, sctp(0)...),
			Packet{Protocol: unix.IPPROTO_SCTP, Client: at6, Asked: to6, Stray: true}},
		{v6(unix.IPPROTO_HOPOPTS, every, tcp(syn)...),
			Packet{Protocol: unix.IPPROTO_TCP, Client: at6, Asked: to6}},
	} {
		var p Packet
		if !p.parse(test.b) || p != test.want {
			t.Errorf("%x: %+v, want %+v", test.b, p, test.want)
		}
		for n := range test.b {
			if p.parse(test.b[:n]) {
				t.Errorf("%x: %d bytes of it are enough", test.b, n)
			}
		}
	}
	later := v4(udp)
	later[7] = 1
	later6 := v6(unix.IPPROTO_FRAGMENT, []byte{udp, 0, 0, 8, 0, 0, 0, 0})
	for _, b := range [][]byte{later, later6} {
		if new(Packet).parse(b) {
			t.Errorf("%x has ports, though it is another one than the first fragment", b)
		}
	}
}
