package lb

import (
	"fmt"
	"slices"
	"strings"
)

// Explain says in words what Pick would do for f and why: which service it is,
// which backends are eligible and why the others are not, what affinity
// remembers, and whose turn it is. It changes nothing. The text is for people
// and has several lines; programs should not parse it.
func (b *Balancer) Explain(f Flow) string {
	snap := b.load()
	i, ok := snap.table.find(&f.Frontend)
	if !ok {
		return fmt.Sprintf("%s belongs to no service\n", f.Frontend)
	}
	var w strings.Builder
	spec, s := &snap.table.services[i], &snap.services[i]
	fmt.Fprintf(&w, "%s belongs to %s", f.Frontend, spec.ID)
	if f.Frontend.Addr = unmap(f.Frontend.Addr); !slices.Contains(spec.Frontends, f.Frontend.Addr) {
		w.WriteString(", as a node port")
	}
	w.WriteString("\n")

	fmt.Fprintf(&w, "%d of %d backends eligible\n", len(s.ring), len(spec.Backends))
	ready := anyReady(spec.Backends)
	for i, k := range s.backends {
		verdict := "not eligible"
		if spec.Backends[i].eligible(ready) {
			verdict = "eligible"
		}
		fmt.Fprintf(&w, "  %s %s: %s", k.addr, verdict, spec.Backends[i].why(ready))
		if f.Tried.has(k) {
			w.WriteString(", already tried")
		}
		fmt.Fprintf(&w, "; %d in flight\n", k.inFlight())
	}
	remembered := s.explainAffinity(&w, &f)
	switch {
	case len(s.ring) == 0:
		w.WriteString("refused: no backend is eligible\n")
	case remembered != nil:
		fmt.Fprintf(&w, "goes to %s: affinity\n", remembered.addr)
	default:
		k := s.ring.peek(&s.state.turns, f.Tried)
		reason := "its turn"
		if f.Tried.hasAll(s.ring) {
			reason = "its turn, though all were tried"
		}
		fmt.Fprintf(&w, "goes to %s: %s\n", k.addr, reason)
	}
	return w.String()
}

// explainAffinity writes what is remembered of the client of f, and returns the
// backend if it would be used.
func (s *service) explainAffinity(w *strings.Builder, f *Flow) *backend {
	if s.affinityTimeout == 0 {
		w.WriteString("no affinity\n")
		return nil
	}
	fmt.Fprintf(w, "affinity for %s", seconds(s.affinityTimeout))
	if !f.Client.IsValid() {
		w.WriteString(": client not known\n")
		return nil
	}
	k, lastUsed, ok := s.state.affinity.Peek(f.Client)
	if !ok {
		fmt.Fprintf(w, ": nothing remembered of %s\n", f.Client)
		return nil
	}
	age := f.Now - lastUsed
	fmt.Fprintf(w, ": %s was sent to %s %s ago", f.Client, k.addr, seconds(age))
	switch {
	case age >= s.affinityTimeout:
		w.WriteString(", expired\n")
	case !k.is(eligible):
		w.WriteString(", no longer eligible\n")
	case f.Tried.has(k):
		w.WriteString(", already tried\n")
	default:
		w.WriteString("\n")
		return k
	}
	return nil
}

// seconds formats nanoseconds; package time is not for this package.
func seconds(ns int64) string { return fmt.Sprintf("%.5g s", float64(ns)/1e9) }
