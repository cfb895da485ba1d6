package balancer

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/sluice-lb/sluice/affinity"
	"github.com/sluice-lb/sluice/lb"
)

// Explain says in words what Pick would do for f and why. It changes nothing. The text is for
// people and has several lines; programs should not parse it.
func (b *Balancer) Explain(f Flow) string {
	snap := b.load()
	at, ok := snap.table.Find(&f.Frontend)
	if !ok {
		return fmt.Sprintf("%s belongs to no service\n", f.Frontend)
	}
	b.mu.Lock() // health is guarded by it
	defer b.mu.Unlock()
	var w strings.Builder
	spec, s := snap.table.In(at.Slot), snap.service(at.Slot)
	address := snap.table.Address(at)
	fmt.Fprintf(&w, "%s belongs to %s: %s", f.Frontend, spec.ID, address.Kind)
	if unmapped(f.Frontend.Addr) != address.Addr {
		fmt.Fprintf(&w, " %s", address.Addr)
	}
	w.WriteString("\n")
	from, allowed := snap.table.Admit(at, &f.Frontend, f.Client)
	explainSources(&w, address, &f, allowed)
	explainPolicy(&w, address, &f, from)
	explainScheduler(&w, s.state.policies.Load())
	explainBackends(&w, spec, s.backends, from, &f)
	remembered := s.explainAffinity(&w, from, &f)

	r := s.rings[from]
	switch {
	case !allowed:
		w.WriteString("dropped: not allowed\n")
	case len(s.rings[lb.ClusterSet]) == 0 && s.state.policies.Load().Hold > 0:
		w.WriteString("waits: no endpoint is eligible, and the Service has hold\n")
	case len(s.rings[lb.ClusterSet]) == 0:
		w.WriteString("refused: no endpoint is eligible\n")
	case len(r) == 0:
		w.WriteString("dropped: no endpoint of this node is eligible\n")
	case remembered != nil:
		fmt.Fprintf(&w, "goes to %s: affinity\n", remembered.addr)
	default:
		next := s.peek(from, &f)
		reason := s.reason(from, next, &f)
		if next.starts() != nil {
			reason += ", if it takes this turn"
		}
		if f.Tried.has(next) {
			reason += ", though all were tried"
		}
		fmt.Fprintf(&w, "goes to %s: %s\n", next.addr, reason)
	}
	return w.String()
}

// explainSources writes who may ask at a, if that is not everybody, and whether the client of f may.
func explainSources(w *strings.Builder, a *lb.Address, f *Flow, allowed bool) {
	if len(a.Sources) == 0 {
		return
	}
	client := plain(f.Client)
	w.WriteString("only for clients in")
	for _, p := range a.Sources {
		fmt.Fprintf(w, " %s", p)
	}
	switch {
	case !client.IsValid():
		w.WriteString(": client not known\n")
	case !allowed:
		fmt.Fprintf(w, ": %s is not\n", client)
	default:
		fmt.Fprintf(w, ": %s is\n", client)
	}
}

// explainPolicy writes which set the client of f gets at a, and why.
func explainPolicy(w *strings.Builder, a *lb.Address, f *Flow, from lb.Set) {
	client := plain(f.Client)
	switch {
	case !a.Local:
		w.WriteString("policy Cluster: endpoints of any node\n")
	case from == lb.ClusterSet:
		fmt.Fprintf(w, "policy Local, but %s is on this node: endpoints of any node\n", client)
	case a.Kind == lb.ClusterIP:
		w.WriteString("policy Local: endpoints of this node\n")
	case !client.IsValid():
		w.WriteString("policy Local, and the client is not known: endpoints of this node\n")
	default:
		fmt.Fprintf(w, "policy Local, and %s is not on this node: endpoints of this node\n", client)
	}
}

// explainBackends writes which backends of s are in a set; backends is what is kept
// of each.
func explainBackends(w *strings.Builder, s *lb.Service, backends []*backend, from lb.Set, f *Flow) {
	sel := lb.Select(s.Backends)
	ejected := func(i int) bool { // from this set
		return sel.Has(from, &s.Backends[i]) && backends[i].is(leftOut) && !backends[i].is(conditionOf(from))
	}
	count := 0
	for i := range backends {
		if sel.Has(from, &s.Backends[i]) && !ejected(i) {
			count++
		}
	}
	fmt.Fprintf(w, "%d of %d endpoints eligible", count, len(s.Backends))
	if note := sel.NoHints(from); note != "" {
		w.WriteString("; " + note)
	}
	w.WriteString("\n")
	for i, k := range backends {
		verdict := "not eligible"
		switch {
		case ejected(i):
			verdict = k.remember().explain(f.Now)
		case sel.Has(from, &s.Backends[i]):
			verdict = "eligible"
			if k.isBad() {
				verdict += " since too few others are, though " + k.remember().explain(f.Now)
			}
		}
		fmt.Fprintf(w, "  %s %s: %s", k.addr, verdict, sel.Why(from, &s.Backends[i]))
		if f.Tried.has(k) {
			w.WriteString(", already tried")
		}
		if s.Backends[i].Weight > 1 {
			fmt.Fprintf(w, "; weight %d", s.Backends[i].Weight)
		}
		if st := k.starts(); st != nil {
			fmt.Fprintf(w, "; slow start: %d %% of its turns", st.part(f.Now)*100/fullTurn)
		}
		fmt.Fprintf(w, "; %d in flight\n", k.inFlight())
	}
}

// explain says since when, until when and for what a backend is ejected.
func (h BackendHealth) explain(now int64) string {
	if !h.Ejected {
		return "fails its check, as " + h.Why
	}
	return fmt.Sprintf("ejected %s ago, for up to %s more (%d in a row), as %s", seconds(now-h.At),
		seconds(h.Until-now), h.Times, h.Reason)
}

// explainAffinity writes what is remembered of the client of f, and returns the
// backend if it would be used.
func (s *service) explainAffinity(w *strings.Builder, from lb.Set, f *Flow) *backend {
	if s.affinityTimeout == 0 {
		w.WriteString("no affinity\n")
		return nil
	}
	fmt.Fprintf(w, "affinity for %s", seconds(s.affinityTimeout))
	if !f.Client.IsValid() {
		w.WriteString(": client not known\n")
		return nil
	}
	k, lastUsed, ok := s.state.sticky.Load().Peek(affinity.KeyOf(f.Client))
	if !ok {
		fmt.Fprintf(w, ": nothing remembered of %s\n", f.Client)
		return nil
	}
	age := f.Now - lastUsed
	fmt.Fprintf(w, ": %s was sent to %s %s ago", f.Client, k.addr, seconds(age))
	switch {
	case age >= s.affinityTimeout:
		w.WriteString(", expired\n")
	case k.is(leftOut) && !k.is(conditionOf(from)):
		w.WriteString(", ejected\n")
	case !k.is(eligible):
		w.WriteString(", no longer eligible\n")
	case !k.is(conditionOf(from)):
		w.WriteString(", not eligible at this address\n")
	case f.Tried.has(k):
		w.WriteString(", already tried\n")
	default:
		w.WriteString("\n")
		return k
	}
	return nil
}

// explainScheduler writes which algorithm there is if it is not the usual one, and why if it is not what was requested.
func explainScheduler(w *strings.Builder, p *lb.Policies) {
	switch scheduler, err := lb.ParseScheduler(p.Scheduler); {
	case err != nil:
		fmt.Fprintf(w, "algorithm %s: %v\n", scheduler, err)
	case scheduler.Algorithm != lb.RoundRobin:
		fmt.Fprintf(w, "algorithm %s\n", scheduler)
	}
}

// reason says why f would go to k.
func (s *service) reason(from lb.Set, k *backend, f *Flow) string {
	what := ""
	switch m := s.method; {
	case m == nil || m.algorithm == lb.RoundRobin:
		what = "next in the round robin"
	case m.algorithm == lb.LeastConnections:
		what = fmt.Sprintf("least connections: %d in flight", k.inFlight())
	case m.algorithm == lb.TwoChoices:
		what = fmt.Sprintf("fewer connections than another at random: %d in flight", k.inFlight())
	case m.algorithm == lb.PeakEWMA:
		what = "it answers sooner than another at random: nothing is known yet"
		if k.latency.Load() != 0 {
			what = fmt.Sprintf("it answers sooner than another at random: %s, %d in flight",
				seconds(int64(k.answersIn(f.Now))), k.inFlight())
		}
	case m.algorithm == lb.Random:
		what = "at random"
	default:
		what = "hash of the client's address"
		if m.port {
			what += fmt.Sprintf(" and port %d", f.ClientPort)
		}
	}
	if t := s.terms(from); t.turns != nil {
		turns := 0
		for _, i := range t.turns {
			if s.rings[from][i] == k {
				turns++
			}
		}
		what += fmt.Sprintf(", by weight: %d of %d turns", turns, len(t.turns))
	}
	return what
}

// seconds formats nanoseconds; package time is not for this package.
func seconds(ns int64) string { return fmt.Sprintf("%.5g s", float64(ns)/1e9) }

// unmapped and plain return an address as a table has it: mapped IPv4 as IPv4, and that of a client without a zone.
func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
