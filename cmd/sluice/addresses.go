package main

import (
	"fmt"
	"net/netip"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/metrics"
	"github.com/sluice-lb/sluice/redirect"
)

// addressFamilies returns the families of mode winuserspace, in which the host holds
// the service addresses. IPv4 has to be, IPv6 is left alone, with a warning, where the host has none.
func (p *program) addressFamilies() (ipv4, ipv6 agent.Family, err error) {
	on := p.cfg.DataPath.ServiceInterface
	family := func(name string, a *redirect.Addresses, bind netip.Addr) (agent.Family, error) {
		if err := a.Probe(); err != nil {
			return agent.Family{}, err
		}
		p.served = append(p.served, metrics.Family{Name: name})
		return agent.Family{Addresses: a, Bind: bind}, nil
	}
	ipv4, err = family("IPv4", &redirect.Addresses{Interface: on}, netip.IPv4Unspecified())
	switch {
	case err != nil && on != "":
		return ipv4, ipv6, fmt.Errorf("--service-interface %s: %w: give the name of an interface that this host has", on, err)
	case err != nil:
		return ipv4, ipv6, err
	}
	ipv6, err = family("IPv6", &redirect.Addresses{Interface: on, IPv6: true}, netip.IPv6Unspecified())
	if err != nil {
		p.log.Warn("IPv6 Services are not served", zap.Error(err))
	}
	return ipv4, ipv6, nil
}
