package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/mmsg"
)

// numbered returns a datagram that differs from all others of a test, in its bytes and,
// next to its neighbours, in more than its number.
func numbered(number, size int) []byte {
	p := make([]byte, size)
	for i := range p {
		p[i] = byte(number + i*7)
	}
	if size >= 4 {
		binary.BigEndian.PutUint32(p, uint32(number))
	}
	return p
}

// gsoBatch is datagrams that one send is to carry.
type gsoBatch struct{ segment, size int }

// payload returns the batch as a whole and each datagram of it, numbered from first on.
func (sent gsoBatch) payload(first int) (whole []byte, parts [][]byte) {
	for left := sent.size; left > 0; left -= sent.segment {
		p := numbered(first+len(parts), min(sent.segment, left))
		parts, whole = append(parts, p), append(whole, p...)
	}
	return whole, parts
}

func segmentControl(size int) []byte {
	control := make([]byte, mmsg.ControlSize)
	return control[:mmsg.PutSegmentSize(control, size)]
}

// sendBatch sends by UDP_SEGMENT, to to, or to the peer of a connected socket.
func (b *backend) sendBatch(t *testing.T, p []byte, segment int, to netip.AddrPort) {
	t.Helper()
	if _, _, err := b.WriteMsgUDPAddrPort(p, segmentControl(segment), to); err != nil {
		t.Fatalf("send %d bytes as datagrams of %d: %v", len(p), segment, err)
	}
}

func (c *client) sendBatch(p []byte, segment int) {
	c.t.Helper()
	if _, _, err := c.WriteMsgUDP(p, segmentControl(segment), nil); err != nil {
		c.t.Fatalf("send %d bytes as datagrams of %d: %v", len(p), segment, err)
	}
}

// wants reads datagrams and compares them, and returns the sender of the last.
func (b *backend) wants(t *testing.T, what string, parts [][]byte, stats func() Stats) (from netip.AddrPort) {
	t.Helper()
	buf := make([]byte, 1<<16)
	for i, want := range parts {
		_ = b.SetReadDeadline(time.Now().Add(patience))
		n, sender, err := b.ReadFromUDPAddrPort(buf)
		if err != nil {
			t.Fatalf("%s, datagram %d: %v; stats = %+v", what, i, err, stats())
		}
		if string(buf[:n]) != string(want) {
			t.Fatalf("%s: datagram %d of %d has %d bytes, want %d, or they differ", what, i, len(parts), n, len(want))
		}
		from = sender
	}
	return from
}

// option reports whether a socket takes batches.
func option(t *testing.T, fd int) bool {
	t.Helper()
	on, err := unix.GetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO)
	if err != nil {
		t.Errorf("UDP_GRO of socket %d: %v", fd, err)
	}
	return on != 0
}

// needsGRO skips the test on a kernel without UDP_GRO.
func needsGRO(t *testing.T) {
	t.Helper()
	s := listenUDP(t, "127.0.0.1:0")
	raw, err := s.SyscallConn()
	if err == nil {
		err = errors.Join(err, raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_GRO, 1)
		}))
	}
	if err != nil {
		t.Skipf("this kernel has no UDP_GRO: %v", err)
	}
}

// came returns how long the datagrams of the message are that the only loop has received
// last; 0 if it was no batch.
func (p *proxy) came() (segment int) {
	p.t.Helper()
	sh := p.shards[0]
	onLoop(p.t, sh, func() {
		if n := sh.in.Len(); n > 0 {
			segment = sh.in.Control(n - 1).SegmentSize()
		}
	})
	return segment
}

// sockets returns all of a Server.
func (p *proxy) sockets() (fds []int) {
	for _, group := range p.listeners {
		for _, ln := range group {
			fds = append(fds, ln.fd)
		}
	}
	for _, sh := range p.shards {
		onLoop(p.t, sh, func() {
			for f := sh.ages.first; f != nil; f = f.links[byAge].next {
				fds = append(fds, f.fd)
			}
		})
	}
	return fds
}

// ethernet are batches whose datagrams fit an Ethernet's MTU.
var ethernet = []gsoBatch{
	{1200, 32 * 1200},
	{1200, 5*1200 + 7},
	{1472, 44*1472 + 700},
	{1000, 2000},
	{1000, 1001},
	{500, 64 * 500},
	{1, 64},
	{16, 16*63 + 1},
	{1200, 54*1200 + 700},
}

// exchangeBatches sends batches both ways. Each datagram arrives as it was sent.
func exchangeBatches(t *testing.T, p *proxy, b *backend, cl *client, batches []gsoBatch, taken bool) {
	t.Helper()
	ends := &backend{UDPConn: cl.UDPConn}
	flow := cl.endTrial(b)
	in, out := uint64(1), uint64(1)
	for i, sent := range batches {
		what := fmt.Sprintf("%d bytes as datagrams of %d", sent.size, sent.segment)
		whole, parts := sent.payload(i * 1000)
		cl.sendBatch(whole, sent.segment)
		if from := b.wants(t, what, parts, p.Stats); from != flow {
			t.Fatalf("%s come from %s, not %s", what, from, flow)
		}
		asOne := sent.size <= 1<<16-100 // with all headers; else the kernel takes it apart
		if got := p.came(); taken && asOne && got != sent.segment {
			t.Errorf("%s were received as datagrams of %d, 0 means one by one", what, got)
		}
		b.sendBatch(t, whole, sent.segment, flow)
		ends.wants(t, what+" back", parts, p.Stats)
		if got := p.came(); taken && asOne && got != sent.segment {
			t.Errorf("%s back were received as datagrams of %d, 0 means one by one", what, got)
		}
		in, out = in+uint64(len(parts)), out+uint64(len(parts))
	}
	eventually(t, fmt.Sprintf("%d and %d datagrams are counted", in, out), func() bool {
		s := p.Stats()
		return s.DatagramsIn == in && s.DatagramsOut == out
	})
	if s := p.Stats(); s.TooLong+s.Busy+s.SendErrors+s.Malformed != 0 || s.Created != 1 {
		t.Errorf("stats = %+v", s)
	}
}

func TestGSOBatches(t *testing.T) {
	needsGRO(t)
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(at, func(t *testing.T) {
			b := listenUDP(t, at)
			p := startProxyAt(t, 1, nil, at, b.addr)
			large := []gsoBatch{{32000, 65507}, {30000, 60000}, {65000, 65507}}
			exchangeBatches(t, p, b, dial(t, p.addr), append(large, ethernet...), true)
		})
	}
}

// TestGSOByEthernet has a wire between, on which datagrams go one by one or as batches.
func TestGSOByEthernet(t *testing.T) {
	needsGRO(t)
	l := newLab(t)
	for _, loops := range []int{1, 2} {
		b := inPod(l, func() *backend { return listenUDP(t, onPod) })
		p := startProxyAt(t, loops, nil, onNode, b.addr)
		cl := inPod(l, func() *client { return dial(t, p.addr) })
		exchangeBatches(t, p, b, cl, ethernet, loops == 1)
	}
}

// TestGSOOnNarrowPath: the way to the backend is narrower than that of the client, so
// that batches have to be taken apart, and datagrams go in fragments.
func TestGSOOnNarrowPath(t *testing.T) {
	needsGRO(t)
	l := newLab(t)
	narrow := strings.Fields("link set mtu 1300 dev")
	l.Node.Run(t, "ip", append(narrow, "cni0")...)
	l.Pods[0].Run(t, "ip", append(narrow, "eth0")...)
	b := inPod(l, func() *backend { return listenUDP(t, onPod) })
	p := startProxy(t, 1, nil, b.addr)
	cl := dial(t, p.addr)
	cl.endTrial(b)
	around := []gsoBatch{{1272, 20 * 1272}, {1273, 40*1273 + 1}, {1400, 46 * 1400}, {1200, 54*1200 + 7}, {1400, 1401}}
	for i, sent := range around {
		what := fmt.Sprintf("%d bytes as datagrams of %d", sent.size, sent.segment)
		whole, parts := sent.payload(i * 1000)
		cl.sendBatch(whole, sent.segment)
		b.wants(t, what, parts, p.Stats)
		if got := p.came(); got != sent.segment {
			t.Errorf("%s were received as datagrams of %d", what, got)
		}
	}
	if s := p.Stats(); s.TooLong+s.Busy+s.Unreachable+s.SendErrors != 0 {
		t.Errorf("stats = %+v", s)
	}
}

// TestLargestBetweenGSOBatches: datagrams of every size that UDP knows pass next to batches.
func TestLargestBetweenGSOBatches(t *testing.T) {
	needsGRO(t)
	b := echo(t, "127.0.0.1:0")
	p := startProxy(t, 1, nil, b.addr)
	cl := dial(t, p.addr)
	ends := &backend{UDPConn: cl.UDPConn}
	for i, size := range []int{65507, 0, 1, 65506, 40000} {
		release := p.block()
		whole, parts := gsoBatch{1200, 50*1200 + 99}.payload(i * 1000)
		cl.sendBatch(whole, 1200)
		large := numbered(i*1000+500, size)
		cl.send(string(large))
		cl.sendBatch(whole, 1200)
		release()
		ends.wants(t, fmt.Sprint(size), slices.Concat(parts, [][]byte{large}, parts), p.Stats)
	}
}

// TestMixedGSOBatches: many clients' batches and datagrams wait in one queue, longer than one
// event may take. Each flow's arrive in order, as they were.
func TestMixedGSOBatches(t *testing.T) {
	needsGRO(t)
	for _, loops := range []int{1, 2} {
		const flows, bursts = 13, 12
		b := listenUDP(t, "127.0.0.1:0")
		p := startProxy(t, loops, nil, b.addr)
		release := p.block()
		want := make([][][]byte, flows)
		clients := dialAll(t, p.addr, flows)
		total := 0
		for j := range bursts {
			for i, c := range clients {
				sent := gsoBatch{segment: 40 + 4*i, size: (40+4*i)*(1+(i*j)%9) + 4*(j%5)}
				if j%4 == 3 {
					sent = gsoBatch{segment: 100, size: 100}
				}
				whole, parts := sent.payload(i*10000 + len(want[i]))
				c.sendBatch(whole, sent.segment)
				want[i] = append(want[i], parts...)
				total += len(parts)
			}
		}
		release()
		buf := make([]byte, 1<<16)
		next := make([]int, flows)
		for range total {
			_ = b.SetReadDeadline(time.Now().Add(patience))
			n, err := b.Read(buf)
			if err != nil {
				t.Fatalf("%v; stats = %+v", err, p.Stats())
			}
			i := int(binary.BigEndian.Uint32(buf)) / 10000
			if i >= flows || next[i] >= len(want[i]) || string(buf[:n]) != string(want[i][next[i]]) {
				t.Fatalf("%d bytes of flow %d are not its datagram %d", n, i, next[i])
			}
			next[i]++
		}
		eventually(t, fmt.Sprintf("%d flows and %d datagrams are counted", flows, total), func() bool {
			s := p.Stats()
			return s.Created == flows && s.DatagramsIn == uint64(total)
		})
	}
}

// TestGSOBatchToRefusingBackend: the first message of a flow is a GSO batch, and two backends
// refuse it. All of it arrives in order at the third.
func TestGSOBatchToRefusingBackend(t *testing.T) {
	needsGRO(t)
	b := listenUDP(t, "127.0.0.1:0")
	p := startProxy(t, 1, nil, refusing(t, "127.0.0.1:0"), refusing(t, "127.0.0.1:0"), b.addr)
	whole, parts := gsoBatch{30, 30*50 + 10}.payload(0)
	for range 3 { // so that each backend is the first once
		dial(t, p.addr).sendBatch(whole, 30)
		b.wants(t, "a GSO batch", parts, p.Stats)
	}
	if s := p.Stats(); s.Refused == 0 || s.Unreachable+s.Busy != 0 || s.Created != 3 {
		t.Errorf("stats = %+v, want refusals and no loss", s)
	}
}

// TestGSOBatchIsDropped: datagrams are counted, not batches.
func TestGSOBatchIsDropped(t *testing.T) {
	needsGRO(t)
	p := startProxy(t, 1, nil)
	whole, parts := gsoBatch{30, 30 * 9}.payload(0)
	dial(t, p.addr).sendBatch(whole, 30)
	eventually(t, "all of a GSO batch are dropped", func() bool { return p.Stats().NoBackend == uint64(len(parts)) })
}

// TestMoveGSOBatches: batches wait in the sockets when everything goes to another Server.
func TestMoveGSOBatches(t *testing.T) {
	needsGRO(t)
	b := echo(t, "127.0.0.1:0")
	p := startProxy(t, 2, nil, b.addr)
	clients := askAll(t, p.addr, 20)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(func() {
			ends := &backend{UDPConn: c.UDPConn}
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				whole, parts := gsoBatch{100, 100*(1+i%30) + 50}.payload(i)
				if _, _, err := c.WriteMsgUDP(whole, segmentControl(100), nil); err != nil {
					t.Error(err)
					return
				}
				buf := make([]byte, 1<<16)
				for j, want := range parts {
					_ = ends.SetReadDeadline(time.Now().Add(patience))
					if n, err := ends.Read(buf); err != nil || string(buf[:n]) != string(want) {
						t.Errorf("datagram %d of %d has %d bytes, want %d (%v)", j, len(parts), n, len(want), err)
						return
					}
				}
			}
		})
	}
	for i := range 8 {
		var flows []Frozen
		if p, flows = p.moveTo(1 + i%3); len(flows) != len(clients) {
			t.Errorf("%d flows moved, want %d", len(flows), len(clients))
		}
		for _, fd := range p.sockets() {
			if !option(t, fd) {
				t.Error("a socket of the next Server takes no batches")
			}
		}
	}
	close(stop)
	wg.Wait()
}

// endTrial has b answer a first question, and returns the address of the flow.
func (c *client) endTrial(b *backend) netip.AddrPort {
	c.t.Helper()
	c.send("first")
	flow := b.question(c.t)
	b.answer(c.t, "answer", flow)
	c.receive()
	return flow
}
