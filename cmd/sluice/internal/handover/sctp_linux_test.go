package handover

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp"
)

// TestWithoutSCTP: a program that would let go of SCTP gets nothing while there is any, and
// one that gets none from an older one opens its sockets itself.
func TestWithoutSCTP(t *testing.T) {
	e := newState(t, 1)
	defer closeState(t, e, nil)
	g := &giver{State: e}
	old, able := &hello{}, &hello{SCTP: true}
	if err := errors.Join(g.checkSCTP(old), g.checkSCTP(able)); err != nil {
		t.Errorf("without SCTP: %v", err)
	}
	sig := lb.Frontend{Protocol: lb.SCTP, Addr: addr4}
	held := sctp.Holding{Engine: sctp.Packet, Why: "it is a test", Shares: 1, Listening: []sctp.Listening{{Frontend: sig, Addr: addr4}}}
	if err := errors.Join(e.SCTP.CanAdopt(&held), e.SCTP.Adopt(held, nil, nil)); err != nil {
		t.Fatal(err)
	}
	if err := g.checkSCTP(old); err != errNoSCTP {
		t.Errorf("a program that cannot take SCTP: %v", err)
	}
	if err := g.checkSCTP(able); err != nil {
		t.Errorf("one that can: %v", err)
	}
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.IPv4Unspecified(), port) }
	s := agent.State{Proxy: []agent.Proxy{{Frontend: sig, Addr: at(1)}, {Frontend: dns, Addr: at(2)}}, Held: []lb.Frontend{sig, dns}}
	want := agent.State{Proxy: []agent.Proxy{{Frontend: dns, Addr: at(2)}}, Held: []lb.Frontend{dns}}
	if got := withoutSCTP(s); !reflect.DeepEqual(got, want) {
		t.Errorf("without SCTP an agent has %+v, want %+v", got, want)
	}
}
