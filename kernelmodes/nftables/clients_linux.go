package nftables

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter/nft"
	"github.com/sluice-lb/sluice/lb"
)

// clients reads the sets of a Service's backends, or before the first Sync those that an earlier process has left.
func (e *Engine) clients(s *lb.Service, now int64) (out []lb.Client, err error) {
	for addr, set := range e.clientSets(s) {
		list, err := e.left(set)
		if err != nil {
			return nil, err
		}
		for _, x := range list {
			ip, _ := netip.AddrFromSlice([]byte(x.Key))
			age := max(0, s.AffinityTimeout-int64(x.Left))
			out = append(out, lb.Client{Addr: ip, Backend: addr, LastUsed: now - age})
		}
	}
	slices.SortFunc(out, func(a, b lb.Client) int { return cmp.Compare(a.LastUsed, b.LastUsed) })
	return out, nil
}

// clientSets returns the sets of the clients of a Service's backends, by backend.
func (e *Engine) clientSets(s *lb.Service) map[netip.AddrPort]string {
	out := make(map[netip.AddrPort]string)
	for i := range s.Backends {
		addr := s.Backends[i].Addr
		if name := clientSet(s.ID, addr).Name; e.content == nil || e.content.HasSet(name) {
			out[addr] = name
		}
	}
	return out
}

// remember adds clients to the sets of their backends, those that have come last first, and removes them from those of
// others: rules look into one set after the other.
func (e *Engine) remember(s *lb.Service, clients []lb.Client) error {
	if e.content == nil {
		return nil
	}
	sets, known := e.clientSets(s), make(map[netip.Addr]bool)
	come := make(map[netip.AddrPort][]nft.Client)
	for _, c := range slices.Backward(clients) { // the last one counts
		if _, ok := sets[c.Backend]; ok && c.Addr.Is6() == s.IPv6 && !known[c.Addr] {
			known[c.Addr] = true
			come[c.Backend] = append(come[c.Backend], nft.Client{Key: nft.Key(c.Addr)})
		}
	}
	for addr, set := range sets {
		elsewhere := make(map[string]bool)
		for backend, list := range come {
			for _, c := range list {
				elsewhere[c.Key] = backend != addr
			}
		}
		if err := e.content.Insert(set, time.Duration(s.AffinityTimeout), come[addr]); err != nil {
			return err
		}
		if err := e.content.Expel(set, elsewhere); err != nil {
			return err
		}
	}
	return nil
}
