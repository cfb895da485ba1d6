package udp

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// An ICMP error that comes when the backend has answered everything is late or forged, and the conversation stays.
func TestForgedRefusal(t *testing.T) { testForged(t, func(p *proxy) *proxy { return p }) }

// TestForgedAfterHandover: it stays also where it was taken over from another process.
func TestForgedAfterHandover(t *testing.T) {
	testForged(t, func(p *proxy) *proxy { next, _ := p.moveTo(1); return next })
}

func testForged(t *testing.T, move func(*proxy) *proxy) {
	l := newLab(t)
	b := inPod(l, func() *backend { return reflecting(t, onPod) })
	forger := inPod(l, func() net.PacketConn {
		c, err := net.ListenPacket("ip4:icmp", l.Pods[0].Addr4.String())
		testbed.Check(t, err)
		return c
	})
	t.Cleanup(func() { _ = forger.Close() })
	p := startProxy(t, 1, nil, b.addr)
	cl := dial(t, p.addr)
	from := cl.ask("q")
	p = move(p)
	p.setBackends(b.addr, naming(t, "other").addr)
	before := refusals(t)
	forged := portUnreachable(netip.MustParseAddrPort(from), b.addr)
	_, err := forger.WriteTo(forged, &net.IPAddr{IP: net.ParseIP("10.244.1.1")})
	testbed.Check(t, err)
	eventually(t, "the error arrives", func() bool { return refusals(t) > before })
	for range 2 { // events that came before it are handled by then
		p.block()()
	}
	if a := cl.ask("q"); a != from || p.Stats().Refused != 0 {
		t.Errorf("%s answers, and %d refusals count, want %s and none", a, p.Stats().Refused, from)
	}
}

// portUnreachable returns the ICMP error about a datagram of 1 byte.
func portUnreachable(from, to netip.AddrPort) []byte {
	ip := binary.BigEndian.AppendUint32(nil, 0x45<<24|29)
	ip = append(ip, 0, 0, 0, 0, 64, 17, 0, 0)
	ip = append(append(ip, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	ip = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(ip, from.Port()), to.Port())
	m := append([]byte{3, 3, 0, 0, 0, 0, 0, 0}, append(ip, 0, 9, 0, 0, 0, 0, 0, 0)...)
	sum := uint32(0)
	for i := 0; i < len(m); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(m[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(m[2:], ^uint16(sum))
	return m
}

// refusals returns how many ICMP messages of type 3 this host has received.
func refusals(t *testing.T) int64 {
	t.Helper()
	n, err := testbed.HereT(t).Counter("Icmp", "InDestUnreachs")
	testbed.Check(t, err)
	return n
}
