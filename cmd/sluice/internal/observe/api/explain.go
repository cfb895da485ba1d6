package api

import (
	"cmp"
	"net/netip"
	"net/url"
	"strings"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// mostExplained is how many addresses an answer explains: a Service may have thousands.
const mostExplained = 100

// explain says what becomes of a client that asks an address, or each address of a Service.
func (s *Sources) explain(q url.Values) (any, error) {
	var client netip.Addr
	var err error
	if text := q.Get("client"); text != "" {
		if client, err = netip.ParseAddr(text); err != nil {
			return nil, refuse("client %q is not an IP address: give one like 192.0.2.100", text)
		}
	}
	frontends, err := s.frontends(q)
	if err != nil {
		return nil, err
	}
	status := s.Status()
	answer := List[Explanation]{Items: []Explanation{}}
	for _, f := range frontends[:min(len(frontends), mostExplained)] {
		answer.Items = append(answer.Items, s.explanation(f, client, &status))
	}
	return answer, nil
}

// protocols are those that an address may be asked by.
var protocols = []lb.Protocol{lb.TCP, lb.UDP, lb.SCTP}

// frontends returns what a request is about.
func (s *Sources) frontends(q url.Values) (out []lb.Frontend, err error) {
	table := s.LB.Table()
	if text := q.Get("address"); text != "" {
		addr, err := netip.ParseAddrPort(text)
		if err != nil {
			return nil, refuse("%q is not an address with a port: give one like 10.96.0.80:80", text)
		}
		for _, p := range protocols {
			f := lb.Frontend{Protocol: p, Addr: addr}
			_, _, served := table.Lookup(f)
			if strings.EqualFold(p.String(), q.Get("protocol")) || q.Get("protocol") == "" && served {
				out = append(out, f)
			}
		}
		switch {
		case len(out) == 0 && q.Get("protocol") != "":
			return nil, refuse("%q is not a protocol: give tcp, udp or sctp", q.Get("protocol"))
		case len(out) == 0:
			out = append(out, lb.Frontend{Protocol: lb.TCP, Addr: addr})
		}
		return out, nil
	}
	if q.Get("name") == "" {
		return nil, refuse("what is to be explained: give an address, or the namespace and name of a Service")
	}
	for _, id := range s.ids(q) {
		if of, ok := table.Service(id); ok {
			for _, a := range of.Addresses {
				out = append(out, lb.Frontend{Protocol: of.Protocol, Addr: a.Addr})
			}
		}
	}
	if len(out) == 0 {
		return nil, cmp.Or(s.exists(q), refuse("no Service %s/%s has an address", q.Get("namespace"), q.Get("name")))
	}
	return out, nil
}

func (s *Sources) explanation(f lb.Frontend, client netip.Addr, status *Status) Explanation {
	e := Explanation{Protocol: f.Protocol.String(), Address: f.Addr.String(),
		Text: s.LB.Explain(balancer.Flow{Frontend: f, Client: client, Now: s.Now()})}
	if client.IsValid() {
		e.Client = client.String()
	}
	of, address, ok := s.LB.Table().Lookup(f)
	if !ok {
		return e
	}
	id, path := idOf(of.ID), s.path(of)
	e.Service, e.Path = &id, &path
	if v, ok := s.LB.Counters().View(of.ID); ok {
		e.Policies = s.policies(v.Service, &v.Policies)
	}
	if path.Effective == "userspace" {
		if address.Kind != lb.NodePort {
			e.Filter = status.PacketFilter
		}
		if f.Protocol == lb.SCTP {
			e.Engine = status.SCTPEngine
		}
	}
	return e
}
