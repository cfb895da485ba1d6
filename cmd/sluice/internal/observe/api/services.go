package api

import (
	"net/netip"
	"net/url"
	"slices"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/policies"
	"github.com/sluice-lb/sluice/internal/flows/report"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

func (s *Sources) services(q url.Values) (any, error) {
	counts, wrong := s.counts(), s.WrongBy()
	return pageOf(s, q, func(to []Service, v *balancer.View, _, _ int) ([]Service, int) {
		one := s.service(v)
		one.Wrong = wrong[v.Service.ID.Service()]
		if k := counts[v.Service.ID]; k != nil {
			one.Kernel = inKernel(&k.Count, k.Chosen)
		}
		return append(to, one), 0
	})
}

// counts returns what is counted of what the kernel forwards.
func (s *Sources) counts() report.Counts {
	if s.Kernel == nil {
		return nil
	}
	return s.Kernel()
}

func inKernel(n *report.Count, chosen bool) *InKernel {
	k := &InKernel{Open: n.Open, Chosen: chosen}
	if n.Counted {
		total, in, out := n.Total, n.In.Bytes, n.Out.Bytes
		k.Total, k.BytesIn, k.BytesOut = &total, &in, &out
	}
	return k
}

// service says what there is of a service port.
func (s *Sources) service(v *balancer.View) Service {
	n := &v.Stats
	out := Service{ID: idOf(n.ID), Path: s.path(v.Service), Policies: s.policies(v.Service, &v.Policies),
		Endpoints: len(v.Service.Backends), Counted: countedOf(n.Counts, n.InFlight), Held: n.Held, Queued: n.Queued,
		Clients: n.AffinityEntries,
		Refused: Refused{n.NoBackend, n.NoLocalBackend, n.NotAllowed, n.OverShare, n.Limited}}
	if v.Service.AffinityTimeout > 0 {
		out.Affinity = time.Duration(v.Service.AffinityTimeout).String()
	}
	for i := range v.Service.Addresses {
		out.Addresses = append(out.Addresses, addressOf(&v.Service.Addresses[i]))
	}
	for i := range v.Service.Backends {
		b := &n.Backends[i]
		if b.Eligible {
			out.Eligible++
		}
		if b.Health.Ejected || b.Health.Failing {
			out.Unhealthy++
		}
	}
	return out
}

// ipv6 is the Family of an ID with IPv6.
const ipv6 = "IPv6"

func idOf(id lb.ID) ID {
	family := "IPv4"
	if id.IPv6 {
		family = ipv6
	}
	return ID{Namespace: id.Namespace, Name: id.Name, Port: id.Port, Protocol: id.Protocol.String(), Family: family}
}

func countedOf(n balancer.Counts, active uint64) Counted {
	return Counted{Picks: n.Picks, Failures: n.Failures, Active: active, BytesIn: n.BytesIn, BytesOut: n.BytesOut}
}

func addressOf(a *lb.Address) Address {
	return Address{Address: a.Addr.String(), Kind: a.Kind.String(), Local: a.Local, Sources: texts(a.Sources)}
}

func texts(prefixes []netip.Prefix) (out []string) {
	for _, p := range prefixes {
		out = append(out, p.String())
	}
	return out
}

// path says what forwards a service port.
func (s *Sources) path(of *lb.Service) Path {
	p := Path{Requested: s.Mode.String()}
	if requested, ok := agent.ParsePath(of.Requests().DataPath); ok {
		p.Requested = requested.String()
	}
	c, ok := s.Choice(of.ID)
	if p.Writing = c.Writing; ok {
		p.Effective, p.Reason, p.Why, p.Fallback = c.Path.String(), c.Reason.String(), c.Why, c.Fallback
	}
	return p
}

// policies returns what holds of what the Service requests or is given for all.
func (s *Sources) policies(of *lb.Service, inForce *lb.Policies) (out []Policy) {
	for _, p := range policies.All() {
		switch requested, value := p.Shown(of.Requests()), p.Shown(inForce); {
		case requested != "":
			out = append(out, Policy{Name: p.Word, Value: requested, From: "annotation"})
		case value != "":
			out = append(out, Policy{Name: p.Word, Value: value, From: "flag"})
		}
	}
	c, ok := s.Choice(of.ID)
	if !ok || c.Offloaded {
		return out
	}
	effective := *of
	effective.Policies = inForce // those by flags included
	for _, lacks := range policies.Shortfalls(&effective, c.Path.String()) {
		i := slices.IndexFunc(out, func(p Policy) bool { return p.Name == lacks.Policy })
		if i < 0 { // weights of its endpoints
			i = len(out)
			out = append(out, Policy{Name: lacks.Policy, Value: lacks.Requested, From: "annotation"})
		}
		out[i].Missing = lacks.Reason
	}
	return out
}
