package daemon

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/nftables"
	"github.com/sluice-lb/sluice/lb"
)

// TestUnnumbered: it is said once of which Services the kernel chooses some endpoints, since these have no number, and
// once that all have one.
func TestUnnumbered(t *testing.T) {
	testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node.Enter(t)
	var said []string
	q := &queues{log: zap.NewNop(), unnumbered: func(of lb.Name, _ bool, endpoints int) {
		said = append(said, fmt.Sprint(of.Name, " ", endpoints))
	}}
	e := &queueEngine{queues: q, Engine: &nftables.Engine{
		Ask: nftables.Ask{First: 1, Count: 1, Mask: 0xf0000, Target: true, Share: 80}}}
	service := func(name string, address byte, endpoints int) *lb.Service {
		at := func(ip ...byte) netip.AddrPort { return netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip)), 80) }
		s := &lb.Service{ID: lb.ID{Namespace: "default", Name: name, Protocol: lb.TCP},
			Addresses: []lb.Address{{Addr: at(10, 96, 0, address), Kind: lb.ClusterIP}}}
		for i := range endpoints {
			s.Backends = append(s.Backends, lb.Backend{Addr: at(10, 244, address, byte(i)), Ready: true})
		}
		return s
	}
	sync := func(want []string, numbered, unnumbered int, d lb.Delta) {
		t.Helper()
		said = nil
		testbed.Check(t, e.Engine.Sync(t.Context(), d, lb.Node{}))
		e.report()
		if s := e.Stats(); !slices.Equal(said, want) || s.Numbered != numbered || s.Unnumbered != unnumbered {
			t.Errorf("%q is said, of %d with and %d without a number; want %q of %d and %d", said, s.Numbered, s.Unnumbered,
				want, numbered, unnumbered)
		}
	}
	big, small := service("big", 1, 20), service("small", 2, 2)
	sync([]string{"big 8"}, 12, 8, lb.Delta{Added: []*lb.Service{big}}) // of 14
	sync(nil, 14, 8, lb.Delta{Added: []*lb.Service{small}})
	few := service("big", 1, 3)
	sync([]string{"big 0"}, 5, 0, lb.Delta{Changed: []lb.Change{{Old: big, New: few}}})
}
