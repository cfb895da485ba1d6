package ipvs

import (
	"maps"
	"net/netip"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/lb"
)

// untranslated are UDP frontends whose virtual servers come or go. What they have in conntrack is of sockets of this
// node, or ipvs has sent it on: then the entry has the endpoint but no translation. Neither may outlast the change, not
// for a moment: ipvs would get datagrams that it cannot masquerade, or nothing would translate them. What else a change
// makes stale is flows.Stale's. They outlive a failed Sync.
type untranslated struct {
	of    map[netip.AddrPort]bool
	leads map[key][]netip.AddrPort // UDP frontends by which clients get to marks
}

// note adds what leads to a virtual server.
func (u *untranslated) note(x key) {
	if x.mark == 0 && x.Protocol == lb.UDP {
		u.add(x.Addr)
	}
	for _, frontend := range u.leads[x] {
		u.add(frontend)
	}
}

func (u *untranslated) add(frontend netip.AddrPort) {
	if u.of == nil {
		u.of = make(map[netip.AddrPort]bool)
	}
	u.of[frontend] = true
}

// delete deletes their entries.
func (u *untranslated) delete(ipv6 bool) error {
	if len(u.of) == 0 {
		return nil
	}
	err := flows.DeleteUntranslated(ipv6, maps.Keys(u.of), func(a netip.AddrPort) bool { return u.of[a] })
	if err == nil {
		u.of = nil
	}
	return err
}
