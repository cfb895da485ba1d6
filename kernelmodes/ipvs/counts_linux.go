package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/moby/ipvs"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

func counts(ipv6 bool, visit func(lb.Frontend, Counts, map[netip.AddrPort]Counts)) error {
	s := shape{ipv6: ipv6, prefix: chainPrefix}
	servers, there, err := s.members(setServers)
	if err != nil || !there || len(servers) == 0 {
		return err
	}
	near, _, err := s.members(setNear)
	if err != nil {
		return err
	}
	frontends := make(map[key]lb.Frontend, len(servers)+len(near))
	for _, m := range servers {
		frontends[key{Frontend: m.Frontend()}] = m.Frontend()
	}
	for _, m := range near { // several of one Service: any of them names it
		frontends[key{mark: m.Mark}] = m.Frontend()
	}
	t, err := open(ipv6, new(uint64))
	if err != nil {
		return err
	}
	defer t.Close()
	all, err := t.GetServices()
	if err != nil {
		return fmt.Errorf("list virtual servers: %w", err)
	}
	for _, s := range all {
		frontend, ours := frontends[keyOf(s)]
		if s.AddressFamily != t.family() || !ours || s.Stats.Connections == 0 {
			continue
		}
		list, err := t.GetDestinations(s)
		if err != nil && !errors.Is(err, syscall.ESRCH) { // it has gone meanwhile
			return fmt.Errorf("list real servers of %s: %w", keyOf(s), err)
		}
		each := make(map[netip.AddrPort]Counts, len(list))
		for _, d := range list {
			if ip, ok := netip.AddrFromSlice(d.Address); ok {
				each[netip.AddrPortFrom(ip.Unmap(), d.Port)] = countsOf((*ipvs.SvcStats)(&d.Stats))
			}
		}
		visit(frontend, countsOf(&s.Stats), each)
	}
	return nil
}

func countsOf(s *ipvs.SvcStats) Counts {
	return Counts{uint64(s.Connections), uint64(s.PacketsIn), uint64(s.PacketsOut), s.BytesIn, s.BytesOut}
}

// keyOf returns which virtual server it is.
func keyOf(s *ipvs.Service) key {
	if s.FWMark != 0 {
		return key{mark: s.FWMark}
	}
	ip, _ := netip.AddrFromSlice(s.Address)
	return key{Frontend: lb.Frontend{Protocol: netfilter.ProtocolOf(uint8(s.Protocol)),
		Addr: netip.AddrPortFrom(ip, s.Port)}}
}
