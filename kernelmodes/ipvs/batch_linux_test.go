package ipvs

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// TestBatches: the kernel refuses some of what comes in batches, which other programs have made
// before: all Services are there as they are to be, the refused ones too.
func TestBatches(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: -1})
	for _, v6 := range []bool{false, true} {
		var services []lb.Service
		var backends []lb.Backend
		for i := range 5 {
			backends = append(backends, lb.Backend{Addr: netip.AddrPortFrom(vip(v6, 2000+i), 8080), Ready: true, Serving: true})
		}
		e := n.engines[0]
		if v6 {
			e = n.engines[1]
		}
		for i := range 2 * messagesInBatch {
			s := simple(fmt.Sprintf("s%05d", i), vip(v6, i+1).String(), 80, lb.TCP, backends[:i%6]...)
			services = append(services, s)
			if at := s.Addresses[0].Addr.String(); i%11 == 5 && len(s.Backends) > 0 {
				n.Node.Run(n.T, "ipvsadm", "-A", "-t", at, "-s", "wlc")
				n.Node.Run(n.T, "ipvsadm", "-a", "-t", at, "-r", s.Backends[0].Addr.String(), "-m", "-w", "7")
			}
		}
		writes := e.Stats().Writes
		n.Node.DoT(n.T, func() error {
			if err := e.Sync(t.Context(), whole(services...), n.About); err != nil {
				return err
			}
			if diff := cmp.Diff(expect(services, v6), found(t, e)); diff != "" {
				t.Errorf("%s: -want +got:\n%s", family(v6), diff)
			}
			return nil
		})
		stats := e.Stats()
		if got, want := int(stats.Writes-writes), stats.VirtualServers+stats.RealServers; got < want {
			t.Errorf("%s: %d writes, want at least %d", family(v6), got, want)
		}
	}
	if !n.Verify() {
		t.Error("Verify finds something out of place")
	}
}
