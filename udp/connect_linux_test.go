package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSelfConnect: the kernel may give the socket of a flow the port of a backend on this
// host that no process listens at. The flow must take that for a refusal, and not answer
// the client with its own question.
func TestSelfConnect(t *testing.T) {
	defer func() { withoutLoops = false }()
	for _, withoutLoops = range []bool{false, true} {
		t.Run(fmt.Sprint("without loops: ", withoutLoops), func(t *testing.T) {
			alive := naming(t, "alive") // its port, and the proxy's, are taken before the range shrinks
			p := startProxy(t, 1, func(s *Server) { s.MaxFlows = 2 }, netip.MustParseAddrPort("127.0.0.1:40000"), alive.addr)
			sysctl(t, "net.ipv4.ip_local_port_range", "40000 40007")
			for i, port := 0, 50000; i < 100; port++ {
				if port > 60999 {
					t.Fatalf("%d clients have found a port", i)
				}
				from := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}
				conn, err := net.DialUDP("udp", from, net.UDPAddrFromAddrPort(p.addr))
				if errors.Is(err, unix.EADDRINUSE) {
					continue // the kernel has chosen it for the proxy, or for another program
				}
				if err != nil {
					t.Fatal(err)
				}
				i++
				c := &client{UDPConn: conn, t: t, buf: make([]byte, 100)}
				if a := c.ask("question"); a != "alive" {
					t.Fatalf("client %d is answered %q", i, a)
				}
				_ = conn.Close()
			}
		})
	}
}

// TestPathShrinks: a router reports that an earlier, long datagram did not fit. What is
// sent before the loop has read that is not dropped, and GSO batches stay batches.
func TestPathShrinks(t *testing.T) {
	defer func() { withoutLoops = false }()
	l := newLab(t)
	b := inPod(l, func() *backend { return listenUDP(t, onPod) })
	read := func(want string) netip.AddrPort {
		t.Helper()
		buf := make([]byte, 2000)
		_ = b.SetReadDeadline(time.Now().Add(patience))
		n, from, err := b.ReadFromUDPAddrPort(buf)
		if err != nil || string(buf[:n]) != want {
			t.Fatalf("the backend got %q, %v; want %q", buf[:n], err, want)
		}
		return from
	}
	for _, withoutLoops = range []bool{false, true} {
		p := startProxy(t, 1, nil, b.addr)
		for _, burst := range [][]string{{"short"}, {"equal", "words"}} {
			cl := dial(t, p.addr)
			cl.send("q")
			from := read("q")
			b.answer(t, "a", from)
			cl.receive()
			release := func() {}
			if !withoutLoops {
				release = p.block() // the burst waits at the frontend until ICMP has arrived
				for _, datagram := range burst {
					cl.send(datagram)
				}
			}
			l.Pods[0].DoT(t, func() error { sendFragmentationNeeded(t, from, b.addr); return nil })
			icmpArrives(t)
			release()
			for _, datagram := range burst {
				if withoutLoops {
					cl.send(datagram)
				}
				read(datagram)
			}
			if s := p.Stats(); s.TooLong != 0 {
				t.Errorf("stats = %+v, want no datagram dropped", s)
			}
			if !withoutLoops && p.anyFlowPlain() {
				t.Error("the flow sends datagrams one by one after the report")
			}
		}
	}
}

// anyFlowPlain reports whether a flow does not use GSO towards its backend.
func (p *proxy) anyFlowPlain() (plain bool) {
	sh := p.shards[0]
	onLoop(p.t, sh, func() {
		for f := sh.ages.first; f != nil; f = f.links[byAge].next {
			plain = plain || f.plain[toBackend]
		}
	})
	return plain
}

// icmpArrives waits until what was sent over a cable has been received.
func icmpArrives(t *testing.T) {
	t.Helper()
	time.Sleep(20 * time.Millisecond) // the kernel reports it to the loop only, which is stopped
}

// sendFragmentationNeeded sends what a router reports of a datagram from src to dst that is
// longer than its next link takes: ICMP type 3, code 4 (RFC 792, RFC 1191).
func sendFragmentationNeeded(t *testing.T, src, dst netip.AddrPort) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	const mtu, length = 1000, 1400
	m := make([]byte, 8+20+8)
	m[0], m[1] = 3, 4
	binary.BigEndian.PutUint16(m[6:], mtu)
	ip := m[8:]
	ip[0] = 0x45
	binary.BigEndian.PutUint16(ip[2:], 20+8+length)
	ip[6] = 0x40 // don't fragment
	ip[8], ip[9] = 64, unix.IPPROTO_UDP
	from, to := src.Addr().Unmap().As4(), dst.Addr().Unmap().As4()
	copy(ip[12:], from[:])
	copy(ip[16:], to[:])
	binary.BigEndian.PutUint16(ip[10:], internetChecksum(ip[:20]))
	binary.BigEndian.PutUint16(ip[20:], src.Port())
	binary.BigEndian.PutUint16(ip[22:], dst.Port())
	binary.BigEndian.PutUint16(ip[24:], 8+length)
	binary.BigEndian.PutUint16(m[2:], internetChecksum(m))
	if err := unix.Sendto(fd, m, 0, &unix.SockaddrInet4{Addr: from}); err != nil {
		t.Fatal(err)
	}
}

// internetChecksum is that of RFC 1071.
func internetChecksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
