package udp

import (
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/lb"
)

// TestLook: each flow is found once, with what it has moved, also after it has moved to another process.
func TestLook(t *testing.T) {
	p := startProxy(t, 2, nil, seen(t)...)
	const n = 200
	clients := askAll(t, p.addr, n)
	find := func(p *proxy, q look.Query) map[netip.AddrPort]look.Info {
		t.Helper()
		all := make(map[netip.AddrPort]look.Info)
		for loop := range len(p.Loops.Loops()) + 1 { // one more than there are
			for from := 0; from != look.End; {
				next, err := p.Look(loop, from, &q, func(i look.Info) bool {
					if _, twice := all[i.Client]; twice {
						t.Errorf("%s is found twice", i.Client)
					}
					all[i.Client] = i
					return len(all)%7 != 0 // in small parts
				})
				if err != nil {
					t.Fatal(err)
				}
				from = next
			}
		}
		return all
	}
	first := clients[0].LocalAddr()
	judge := func(p *proxy, in uint64) {
		t.Helper()
		all := find(p, look.Query{})
		i := all[netip.MustParseAddrPort(first.String())]
		if len(all) != n || i.Protocol != lb.UDP || i.Asked != frontend(1, false).Addr ||
			i.State != look.Established || i.In != in ||
			i.Out < in || !i.Backend.IsValid() || !i.Known || i.Idle > i.Age {
			t.Errorf("%d are found, and the first is %+v", len(all), i)
		}
	}
	judge(p, 1)
	if got := len(find(p, look.Query{Name: "other"})); got != 0 {
		t.Errorf("%d are found of another Service", got)
	}
	next, _ := p.moveTo(1)
	clients[0].ask("?")
	judge(next, 2)
}
