package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/lb"
)

// TestLosers: a Service whose address another one owns is reported once, again when the owner is another, and when
// that is over. The process that takes over leaves the address where it is.
func TestLosers(t *testing.T) {
	a, _ := newAgent(t)
	var told []string
	observe := func(attempt Attempt) {
		for _, l := range attempt.Losers {
			text := l.Service.Name
			for _, taken := range l.Taken {
				text += fmt.Sprint(" ", taken.Owner.Name, " ", taken.As)
			}
			told = append(told, text)
		}
	}
	a.Observe = observe
	ip := netip.MustParseAddrPort("192.0.2.99:80")
	listing := func(name string, created int64, kind lb.Kind) *lb.Service {
		s := service(lb.TCP, name, 1, 1)
		s.Created, s.Addresses = created, []lb.Address{{Addr: ip, Kind: kind}}
		return s
	}
	young, old, better := listing("young", 9, lb.ExternalIP), listing("old", 1, lb.ExternalIP), listing("ip", 10, lb.ClusterIP)
	apply := func(want []string, services ...*lb.Service) {
		t.Helper()
		told = nil
		slices.SortFunc(services, func(a, b *lb.Service) int { return a.ID.Compare(b.ID) })
		if err := a.Apply(t.Context(), Desired{Services: lists.Of(services)}); err != nil {
			t.Fatal(err)
		}
		if slices.Sort(told); !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	}
	apply(nil, young)
	apply([]string{"old young external IP"}, young, old)
	apply(nil, young, old)
	state := a.State()
	heir, _ := newAgent(t)
	if err := heir.Adopt(state); err != nil {
		t.Fatal(err)
	}
	heir.Observe = observe
	a = heir
	apply([]string{"old young external IP"}, young, old)
	apply([]string{"old ip cluster IP", "young ip cluster IP"}, young, old, better)
	apply([]string{"old", "young old external IP"}, young, old)
	apply([]string{"young"}, young)
}
