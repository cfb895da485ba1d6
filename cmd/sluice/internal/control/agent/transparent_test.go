package agent

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// switches notes what is requested of a Transparency.
type switches struct {
	said []string
	err  error
}

func (s *switches) Sync(ipv6, on bool) error {
	if said := fmt.Sprint(ipv6, on); !slices.Contains(s.said, said) {
		s.said = append(s.said, said)
	}
	return s.err
}

func (s *switches) Verify() bool { return true }

// TestTransparencyIsRequested: as long as a TCP Service in user space requests it, of the family that does, from when
// this process has taken over; an error fails nothing else.
func TestTransparencyIsRequested(t *testing.T) {
	a, _, _, _ := withEngines(t)
	s := new(switches)
	a.Transparency = s
	requested := func(p lb.Protocol, path string) *lb.Service {
		out := requesting(service(p, "web", 1, 1), path)
		out.Policies.Transparent = lb.On
		return out
	}
	for _, step := range []struct {
		services []*lb.Service
		want     []string
	}{
		{nil, []string{"false false", "true false"}},
		{[]*lb.Service{requested(lb.TCP, "")}, []string{"false true", "true false"}},
		{[]*lb.Service{requested(lb.TCP, "iptables")}, []string{"false false", "true false"}},
		{[]*lb.Service{requested(lb.UDP, "")}, []string{"false false", "true false"}},
		{[]*lb.Service{service(lb.TCP, "web", 1, 1)}, []string{"false false", "true false"}},
	} {
		s.said, s.err = nil, errors.New("not permitted")
		mustApply(t, a, step.services...)
		if !slices.Equal(s.said, step.want) {
			t.Errorf("%v, want %v", s.said, step.want)
		}
	}
	taker, _, _, _ := withEngines(t)
	s.said, taker.Transparency = nil, s
	if err := taker.Adopt(State{Services: []*lb.Service{requested(lb.TCP, "")}}); err != nil {
		t.Fatal(err)
	}
	// What is not requested may be of connections that are still to come.
	if want := []string{"false true"}; !slices.Equal(s.said, want) {
		t.Errorf("after a hand-over %v, want %v", s.said, want)
	}
}
