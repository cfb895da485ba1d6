package packet

import (
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/sctp/engine"
	"github.com/sluice-lb/sluice/sctp/wire"
)

// Passing a packet on allocates nothing, in either family and direction.
func TestForwardAllocatesNothing(t *testing.T) {
	for _, addrs := range [][2]string{{"192.0.2.1", "192.0.2.2"}, {"2001:db8::1", "2001:db8::2"}} {
		client, node := netip.MustParseAddr(addrs[0]), netip.MustParseAddr(addrs[1])
		sh := newShard(&engine.Config{MaxAssociations: 1}, nil, 0, 1)
		sock := &rawSocket{sh: sh, ipv6: client.Is6(), fd: -1} // nothing is sent
		a := &assoc{sh: sh, phase: established, tags: engine.Tags{Client: 7, Backend: 9}}
		a.meter.Add(a.choice, 1, 1) // the timer that counts bytes is running
		a.client = newSide(a, netip.AddrPortFrom(client, 1000), netip.AddrPortFrom(node, 2000), 0)
		a.backend = newSide(a, netip.AddrPortFrom(client, 3000), netip.AddrPortFrom(node, 4000), 0)
		sh.sides[a.client.key], sh.sides[a.backend.key] = &a.client, &a.backend
		in, out := testbed.SCTPPacket(9, testbed.SCTPData(make([]byte, 1200)...)), testbed.SCTPPacket(7, testbed.SCTPData(1))
		if n := testing.AllocsPerRun(100, func() {
			wire.SetPorts(in, 1000, 2000)
			sock.handle(&received{peer: client, local: node, sctp: in}, 1)
			wire.SetPorts(out, 3000, 4000)
			sock.handle(&received{peer: client, local: node, sctp: out}, 1)
			sock.flush()
		}); n != 0 {
			t.Errorf("%v allocations for two packets, want none", n)
		}
		var s engine.Stats
		if sh.count.AddTo(&s); s.PacketsIn != 101 || s.PacketsOut != 101 || s.SendErrors != 202 {
			t.Errorf("%+v", s)
		}
	}
}
