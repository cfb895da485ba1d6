package sctp

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/sctp/wire"
)

// hand is a raw socket on a host, from which a test writes packets of its own.
type hand struct {
	t    *testing.T
	conn *net.IPConn
	to   netip.AddrPort
	from uint16
}

func (l *lab) hand(h *testbed.Host, from uint16) *hand {
	l.t.Helper()
	w := &hand{t: l.t, to: l.frontend, from: from}
	check(l.t, h.Do(func() (err error) {
		w.conn, err = net.ListenIP("ip4:132", &net.IPAddr{IP: h.Addr(l.ipv6).AsSlice()})
		return err
	}))
	l.t.Cleanup(func() { _ = w.conn.Close() })
	return w
}

// write sends a packet as it is but for its ports and checksum.
func (w *hand) write(b []byte) {
	w.t.Helper()
	b = bytes.Clone(b)
	wire.SetPorts(b, w.from, w.to.Port())
	w.writeRaw(b)
}

func (w *hand) writeRaw(b []byte) {
	w.t.Helper()
	if _, err := w.conn.WriteToIP(b, &net.IPAddr{IP: w.to.Addr().AsSlice()}); err != nil {
		w.t.Fatal(err)
	}
}

// read returns the next wire.Sound packet to the hand's port.
func (w *hand) read(within time.Duration) ([]byte, wire.Content, bool) {
	w.t.Helper()
	buf := make([]byte, 64<<10)
	check(w.t, w.conn.SetReadDeadline(time.Now().Add(within)))
	for {
		n, err := w.conn.Read(buf)
		if err != nil {
			return nil, wire.Content{}, false
		}
		b := buf[:n]
		if b[0]>>4 == 4 && n > 20 { // Read, unlike ReadFrom, leaves the IP header
			b = b[int(b[0]&15)*4:]
		}
		if c, err := wire.Parse(b); err == wire.Sound && c.Dest == w.from {
			return b, c, true
		}
	}
}

// What is wrong with a packet has it dropped and counted, and changes nothing for
// the association whose ports it has.
func TestHostilePackets(t *testing.T) {
	l := only(t, Packet, testbed.Config{Pods: 1}, settings{})
	accepted := l.serve(l.Pods...)
	const from = 7000
	client, err := l.tryDial(l.Client, from, patience)
	check(t, err)
	server := l.accept(accepted[0])
	w := l.hand(l.Client, from)
	tooLong := testbed.SCTPPacket(1, testbed.SCTPData(1))
	tooLong[wire.HeaderSize+3] = 200
	init := testbed.SCTPInit(wire.ChunkInit, 99)
	count := func(get func(Stats) uint64) func(Stats) uint64 { return get }
	for _, c := range []struct {
		name  string
		b     []byte
		raw   bool // as it is, with its own checksum
		count func(Stats) uint64
	}{
		{"wrong checksum", testbed.SCTPPacket(1, testbed.SCTPData(1)), true, count(func(s Stats) uint64 { return s.BadChecksum })},
		{"data with a wrong tag", testbed.SCTPPacket(1, testbed.SCTPData(1)), false, count(func(s Stats) uint64 { return s.BadTag })},
		{"abort with a wrong tag", testbed.SCTPPacket(1, testbed.SCTPChunk(wire.ChunkAbort, 0)), false, count(func(s Stats) uint64 { return s.BadTag })},
		{"reflected abort with a wrong tag", testbed.SCTPPacket(1, testbed.SCTPChunk(wire.ChunkAbort, 1)), false, count(func(s Stats) uint64 { return s.BadTag })},
		{"shutdown with a wrong tag", testbed.SCTPPacket(1, testbed.SCTPChunk(wire.ChunkShutdown, 0, 0, 0, 0, 0)), false, count(func(s Stats) uint64 { return s.BadTag })},
		{"shutdown complete with a wrong tag", testbed.SCTPPacket(1, testbed.SCTPChunk(wire.ChunkShutdownComplete, 1)), false, count(func(s Stats) uint64 { return s.BadTag })},
		{"cookie that was never issued", testbed.SCTPPacket(1, testbed.SCTPChunk(wire.ChunkCookieEcho, 0, 1, 2, 3)), false, count(func(s Stats) uint64 { return s.BadTag })},
		{"init and data", testbed.SCTPPacket(0, init, testbed.SCTPData(1)), false, count(func(s Stats) uint64 { return s.Bundled })},
		{"two inits", testbed.SCTPPacket(0, init, init), false, count(func(s Stats) uint64 { return s.Bundled })},
		{"init with a tag", testbed.SCTPPacket(1, init), false, count(func(s Stats) uint64 { return s.Malformed })},
		{"init ack of a client", testbed.SCTPPacket(1, testbed.SCTPInit(wire.ChunkInitAck, 99)), false, count(func(s Stats) uint64 { return s.Unexpected })},
		{"chunk longer than its packet", tooLong, false, count(func(s Stats) uint64 { return s.Malformed })},
		{"no chunk", testbed.SCTPPacket(1)[:wire.HeaderSize], false, count(func(s Stats) uint64 { return s.Malformed })},
		{"one byte", []byte{1}, true, count(func(s Stats) uint64 { return s.Malformed })},
		{"asconf with a wrong tag", testbed.SCTPPacket(1, testbed.SCTPChunk(wire.ChunkASCONF, 0, 1, 2, 3, 4)), false, count(func(s Stats) uint64 { return s.BadTag })},
	} {
		before := c.count(l.stats())
		if c.raw {
			if c.b = bytes.Clone(c.b); len(c.b) > 12 {
				c.b[0], c.b[1], c.b[2], c.b[3] = byte(from>>8), byte(from&255), byte(w.to.Port()>>8), byte(w.to.Port())
			}
			w.writeRaw(c.b)
		} else {
			w.write(c.b)
		}
		l.eventually(c.name+" is counted", func(s Stats) bool { return c.count(s) == before+1 })
	}
	ask(t, client, server, message{stream: 1, ppid: 2, data: []byte("undisturbed")})
	ask(t, server, client, message{stream: 1, ppid: 2, data: []byte("so am I")})
	s := l.stats()
	if s.Active != 1 || s.Accepted != 1 || s.Established != 1 {
		t.Errorf("%+v", s)
	}
	report(t, client.shutdown())
	l.eventually("the association ended well", func(s Stats) bool { return s.Active == 0 && s.Completed == 1 })
}

// What comes to a frontend without an association is answered as RFC 9260, section
// 8.4 wants it; what comes to other ports may be another program's, and is not.
func TestOutOfTheBlue(t *testing.T) {
	l := only(t, Packet, testbed.Config{Pods: 1}, settings{})
	l.serve(l.Pods...)
	w := l.hand(l.Client, 7001)
	for _, c := range []struct {
		name string
		b    []byte
		want wire.Kinds // 0: no answer
	}{
		{"data", testbed.SCTPPacket(5, testbed.SCTPData(1)), wire.KindAbort},
		{"heartbeat", testbed.SCTPPacket(5, testbed.SCTPChunk(4, 0, 0, 1, 0, 4)), wire.KindAbort},
		{"cookie", testbed.SCTPPacket(5, testbed.SCTPChunk(wire.ChunkCookieEcho, 0, 1)), wire.KindAbort},
		{"shutdown", testbed.SCTPPacket(5, testbed.SCTPChunk(wire.ChunkShutdown, 0, 0, 0, 0, 0)), wire.KindAbort},
		{"shutdown ack", testbed.SCTPPacket(5, testbed.SCTPChunk(wire.ChunkShutdownAck, 0)), wire.KindShutdownComplete},
		{"abort", testbed.SCTPPacket(5, testbed.SCTPChunk(wire.ChunkAbort, 0)), 0},
		{"shutdown complete", testbed.SCTPPacket(5, testbed.SCTPChunk(wire.ChunkShutdownComplete, 0)), 0},
		{"cookie ack", testbed.SCTPPacket(5, testbed.SCTPChunk(wire.ChunkCookieAck, 0)), 0},
		{"error", testbed.SCTPPacket(5, testbed.SCTPChunk(wire.ChunkError, 0)), 0},
	} {
		before := l.stats().Stray
		w.write(c.b)
		l.eventually(c.name+" is counted", func(s Stats) bool { return s.Stray == before+1 })
		within := patience
		if c.want == 0 {
			within = 100 * time.Millisecond
		}
		_, got, ok := w.read(within)
		if ok != (c.want != 0) || ok && (got.Kinds != c.want || !got.Reflected || got.Tag != 5) {
			t.Errorf("%s is answered by %+v, %v", c.name, got, ok)
		}
	}
	w.to = netip.AddrPortFrom(w.to.Addr(), 9999)
	w.write(testbed.SCTPPacket(5, testbed.SCTPData(1)))
	w.write(testbed.SCTPPacket(0, testbed.SCTPInit(wire.ChunkInit, 9)))
	l.eventually("both are counted", func(s Stats) bool { return s.Stray == 11 })
	if _, got, ok := w.read(100 * time.Millisecond); ok {
		t.Errorf("a port that is not ours answers with %+v", got)
	}
}

// The kernel does not report the protocol as unreachable while we forward it.
func TestKernelKeepsQuiet(t *testing.T) {
	l := only(t, Packet, testbed.Config{Pods: 1}, settings{})
	l.serve(l.Pods...)
	for _, c := range []struct {
		to   netip.Addr
		want bool // ICMP
	}{{l.Node.Addr4, false}, {l.Pods[0].Addr4, false}, {l.Router.Addr4, true}} {
		var conn *net.IPConn
		check(t, l.Client.Do(func() (err error) {
			conn, err = net.DialIP("ip4:132", nil, &net.IPAddr{IP: c.to.AsSlice()}) // connected, it gets ICMP errors
			return err
		}))
		b := testbed.SCTPPacket(0, testbed.SCTPInit(wire.ChunkInit, 9))
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
		check(t, conn.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
		_, err := conn.Read(make([]byte, 1500))
		if reported := err != nil && !errors.Is(err, os.ErrDeadlineExceeded); reported != c.want {
			t.Errorf("%v: %v", c.to, err)
		}
		_ = conn.Close()
	}
}

// handshake makes an association with a backend that is a hand, too, and returns
// both hands and tags. The client's INIT and the backend's INIT ACK carry what
// must not pass.
func (l *lab) handshake(backend *testbed.Host, from uint16) (c, b *hand, clientTag, backendTag uint32) {
	l.t.Helper()
	c, b = l.hand(l.Client, from), l.hand(backend, port)
	forbidden := [][]byte{testbed.SCTPParam(wire.ParamIPv4, 10, 9, 9, 9), testbed.SCTPParam(wire.ParamExtensions, wire.ChunkASCONF, wire.ChunkASCONFAck, 0x82), testbed.SCTPParam(wire.ParamHostname, 'x', 0)}
	allowed := testbed.SCTPParam(wire.ParamExtensions, 0x82)
	c.write(testbed.SCTPPacket(0, testbed.SCTPInit(wire.ChunkInit, 70, forbidden...)))
	got, content, ok := b.read(patience)
	if !ok || content.Kinds != wire.KindInit || !bytes.Equal(got[wire.HeaderSize:], testbed.SCTPInit(wire.ChunkInit, 70, allowed)) {
		l.t.Fatalf("the backend gets %x, %v", got, ok)
	}
	b.to = netip.AddrPortFrom(testbed.Gateway(l.ipv6), content.Source)
	b.write(testbed.SCTPPacket(70, testbed.SCTPInit(wire.ChunkInitAck, 90, append(forbidden, testbed.SCTPParam(7, 1, 2, 3))...)))
	got, content, ok = c.read(patience)
	if !ok || content.Kinds != wire.KindInitAck || !bytes.Equal(got[wire.HeaderSize:], testbed.SCTPInit(wire.ChunkInitAck, 90, allowed, testbed.SCTPParam(7, 1, 2, 3))) {
		l.t.Fatalf("the client gets %x, %v", got, ok)
	}
	c.write(testbed.SCTPPacket(90, testbed.SCTPChunk(wire.ChunkCookieEcho, 0, 1, 2, 3), testbed.SCTPData(1)))
	if _, content, ok = b.read(patience); !ok || content.Kinds != wire.KindCookieEcho || content.Messages != 1 {
		l.t.Fatalf("the backend gets %+v, %v", content, ok)
	}
	b.write(testbed.SCTPPacket(70, testbed.SCTPChunk(wire.ChunkCookieAck, 0)))
	if _, content, ok = c.read(patience); !ok || content.Kinds != wire.KindCookieAck {
		l.t.Fatalf("the client gets %+v, %v", content, ok)
	}
	return c, b, 70, 90
}

// Neither side can lead the other past us: addresses do not pass, and ASCONF is
// refused.
func TestAddressesStay(t *testing.T) {
	l := only(t, Packet, testbed.Config{Pods: 1}, settings{})
	l.backends(0, l.Pods...)
	c, b, clientTag, backendTag := l.handshake(l.Pods[0], 7002)
	asconf := testbed.SCTPChunk(wire.ChunkASCONF, 0, 0, 0, 0, 1, 0, 5, 0, 8, 10, 9, 9, 9)
	for _, side := range []struct {
		from, to *hand
		tag, own uint32
	}{{c, b, backendTag, clientTag}, {b, c, clientTag, backendTag}} {
		side.from.write(testbed.SCTPPacket(side.tag, asconf, testbed.SCTPData(1)))
		got, content, ok := side.from.read(patience)
		want := testbed.SCTPPacket(side.own, testbed.SCTPChunk(wire.ChunkError, 0, testbed.SCTPParam(wire.CauseUnrecognized, asconf...)...))
		if !ok || content.Tag != side.own || !bytes.Equal(got[wire.HeaderSize:], want[wire.HeaderSize:]) {
			t.Errorf("ASCONF is answered by %x, %v; want %x", got, ok, want)
		}
		if got, _, ok := side.to.read(100 * time.Millisecond); ok {
			t.Errorf("the other side got %x", got)
		}
	}
	if s := l.stats(); s.ASCONF != 2 || s.Active != 1 {
		t.Errorf("%+v", s)
	}
}

// An association that passes nothing for too long is over, and both sides are aborted.
func TestIdleTimeout(t *testing.T) {
	l := only(t, Packet, testbed.Config{Pods: 1}, settings{IdleTimeout: 2 * time.Second})
	l.backends(0, l.Pods...)
	c, b, clientTag, backendTag := l.handshake(l.Pods[0], 7003)
	start := time.Now()
	for range 4 { // what passes keeps it
		// Less than the timeout goes by without an event.
		time.Sleep(600 * time.Millisecond)
		c.write(testbed.SCTPPacket(backendTag, testbed.SCTPChunk(4, 0, 0, 1, 0, 4)))
		if _, _, ok := b.read(patience); !ok {
			t.Fatal("a heartbeat does not pass")
		}
	}
	for _, side := range []struct {
		at  *hand
		tag uint32
	}{{c, clientTag}, {b, backendTag}} {
		if _, got, ok := side.at.read(patience); !ok || got.Kinds != wire.KindAbort || got.Tag != side.tag || got.Reflected {
			t.Errorf("got %+v, %v", got, ok)
		}
	}
	if took := time.Since(start); took < 4300*time.Millisecond {
		t.Errorf("idle after %v", took)
	}
	l.eventually("it is counted", func(s Stats) bool { return s.Active == 0 && s.Expired == 1 })
}

// A full table makes room for new associations at the cost of those that are not
// established, never of those that are.
func TestFullTable(t *testing.T) {
	l := only(t, Packet, testbed.Config{Pods: 1}, settings{MaxAssociations: 8}) // 4 a loop
	l.backends(0, l.Pods...)
	c, b, _, backendTag := l.handshake(l.Pods[0], 7004)
	flood := l.hand(l.Client, 0)
	for i := range 100 {
		flood.from = uint16(8000 + i)
		flood.write(testbed.SCTPPacket(0, testbed.SCTPInit(wire.ChunkInit, uint32(i+1))))
	}
	l.eventually("the flood is through", func(s Stats) bool { return s.Accepted+s.Full == 101 })
	s := l.stats()
	if s.Active > 8 || s.Evicted < 92 || s.Full != 0 {
		t.Errorf("%+v", s)
	}
	c.write(testbed.SCTPPacket(backendTag, testbed.SCTPData(1)))
	for {
		_, got, ok := b.read(patience)
		if !ok {
			t.Fatal("the association that was there is not any more")
		}
		if got.Messages == 1 {
			break
		}
	}
}

// A client that has lost its association starts again at the same backend.
func TestRestart(t *testing.T) {
	l := only(t, Packet, testbed.Config{Pods: 2}, settings{})
	accepted := l.serve(l.Pods...)
	const from = 7005
	for i := range 3 {
		client, err := l.tryDial(l.Client, from, patience)
		if err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
		var server peer
		select {
		case server = <-accepted[0]:
		case server = <-accepted[1]:
		case <-time.After(patience):
			t.Fatal("no association arrives")
		}
		ask(t, client, server, message{data: []byte("hello")})
		client.vanish()
	}
	if s := l.stats(); s.Accepted != 1 || s.Established != 1 || s.Dials != 1 || s.Active != 1 {
		t.Errorf("%+v", s)
	}
}

// TestRestartElsewhere: an INIT from the port of an association whose backend has died reaches another one, if the
// client repeats it.
func TestRestartElsewhere(t *testing.T) {
	for name, died := range map[string]struct{ refuses, removed bool }{
		"silent": {}, "refuses": {refuses: true}, "removed": {removed: true}, "removed, refuses": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := only(t, Packet, testbed.Config{Pods: 2}, settings{DialTimeouts: slices.Repeat([]time.Duration{moment()}, 4)})
			l.backends(0, l.Pods[0])
			c, dead, _, _ := l.handshake(l.Pods[0], 7007)
			other := l.hand(l.Pods[1], port)
			if died.removed {
				l.backends(0, l.Pods[1])
			} else {
				l.backends(0, l.Pods...)
			}
			init := testbed.SCTPPacket(0, testbed.SCTPInit(wire.ChunkInit, 71))
			for deadline := time.Now().Add(patience); ; {
				c.write(init)
				if _, content, ok := dead.read(moment() / 2); ok && died.refuses && content.Kinds == wire.KindInit {
					dead.to = netip.AddrPortFrom(testbed.Gateway(l.ipv6), content.Source)
					dead.write(wire.Abort(content.InitTag, false))
				}
				if _, content, ok := other.read(moment() / 2); ok {
					if content.Kinds != wire.KindInit || content.InitTag != 71 {
						t.Errorf("the other backend gets %+v", content)
					}
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("no INIT reaches the other backend; %+v", l.stats())
				}
			}
		})
	}
}

// An association that its backend has not answered leaves it as soon as that is
// removed, not when the attempt is over.
func TestRemovedBeforeItAnswers(t *testing.T) {
	l := only(t, Packet, testbed.Config{Pods: 1, RemotePods: 1}, settings{DialTimeouts: []time.Duration{time.Hour}})
	l.blackhole()
	l.backends(0, l.RemotePods...)
	b := l.hand(l.Pods[0], port)
	c := l.hand(l.Client, 7006)
	c.write(testbed.SCTPPacket(0, testbed.SCTPInit(wire.ChunkInit, 70)))
	l.eventually("the silent backend is asked", func(s Stats) bool { return s.Dials == 1 })
	c.write(testbed.SCTPPacket(0, testbed.SCTPInit(wire.ChunkInit, 71))) // the last INIT is what the next one gets
	l.eventually("it is asked again", func(s Stats) bool { return s.PacketsIn == 1 })
	l.backends(0, l.Pods...)
	if got, content, ok := b.read(patience); !ok || content.InitTag != 71 {
		t.Errorf("the backend that is left gets %x, %v", got, ok)
	}
	if s := l.stats(); s.Dials != 2 || s.Accepted != 1 || s.DialTimedOut != 0 {
		t.Errorf("%+v", s)
	}
}
