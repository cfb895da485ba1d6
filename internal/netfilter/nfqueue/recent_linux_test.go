package nfqueue

import (
	"hash/maphash"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestRecent: flows are known by what identifies them, as many as may wait and whatever their hashes are, while packets
// of them may be on their way.
func TestRecent(t *testing.T) {
	r := &recent{seed: maphash.MakeSeed()}
	at := func(n int) flow {
		ip := netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})
		return flow{unix.IPPROTO_UDP, netip.AddrPortFrom(ip, 1), netip.AddrPortFrom(ip, 53)}
	}
	for n := range 3 * manyRecent {
		f, known := r.find(at(n), when{drained: 7})
		if f.verdict.Mark = uint32(n); known {
			t.Fatalf("flow %d is known at once", n)
		}
	}
	for n := 2 * manyRecent; n < 3*manyRecent; n++ {
		if f, known := r.find(at(n), when{8, time.Second}); !known || f.verdict.Mark != uint32(n) {
			t.Fatalf("flow %d: known %v, mark %d", n, known, f.verdict.Mark)
		}
	}
	one := at(3*manyRecent - 1)
	if _, known := r.find(one, when{9, time.Second}); known {
		t.Error("a flow is known when no datagram of it can be on its way")
	}
	soon := when{20, time.Second + underWay - 1}
	if _, known := r.find(one, soon); !known {
		t.Error("a flow of UDP is not known while a datagram of it may be on its way")
	}
	one.protocol = unix.IPPROTO_TCP
	r.find(one, when{20, time.Second})
	if _, known := r.find(one, when{22, time.Second}); known {
		t.Error("a connection is known for longer than its packets may wait")
	}
	if n := testing.AllocsPerRun(100, func() { r.find(one, soon) }); n > 0 {
		t.Errorf("find allocates %v times", n)
	}
}
