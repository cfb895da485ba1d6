package main

import (
	"net/netip"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/redirect"
)

// addressFamilies returns the families of mode winuserspace, in which the host holds
// the service addresses. IPv4 has to be, IPv6 is left alone, with a warning, where the host has none.
func (p *program) addressFamilies() (ipv4, ipv6 agent.Family, err error) {
	a := &redirect.Addresses{Interface: p.cfg.ServiceInterface}
	if err := a.Probe(); err != nil {
		return ipv4, ipv6, err
	}
	ipv4 = agent.Family{Addresses: a, Bind: netip.IPv4Unspecified()}
	a = &redirect.Addresses{Interface: p.cfg.ServiceInterface, IPv6: true}
	if err := a.Probe(); err != nil {
		p.log.Warn("IPv6 Services are not served", zap.Error(err))
		return ipv4, ipv6, nil
	}
	return ipv4, agent.Family{Addresses: a, Bind: netip.IPv6Unspecified()}, nil
}
