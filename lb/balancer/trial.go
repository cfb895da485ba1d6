package balancer

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/lb"
)

// Trial is a connection to be made to an ejected backend, to see whether it answers again. Exactly one of its methods
// Passed and Failed is called, or neither if nothing was learnt.
type Trial struct{ backend *backend }

// Backend returns the address to connect to, by TCP.
func (t Trial) Backend() netip.AddrPort { return t.backend.addr }

// ProxyVersion is as that of a Choice.
func (t Trial) ProxyVersion() uint8 { return Choice(t).ProxyVersion() }

// Trials returns the trials that are due now, at most so many, and when to ask again; 0: no backend is ejected.
// Services take turns, so that none with many dead backends makes those of others wait. Backends that return without a
// trial do so here, and services of many backends take note of ejections: call it within 100 ms of each.
func (hs Health) Trials(now int64, most int) (due []Trial, next int64) {
	hs.b.mu.Lock()
	defer hs.b.mu.Unlock()
	defer hs.rebuildChanged()
	for _, k := range slices.Clone(hs.b.outliers.ejected) {
		switch h := k.health.Load(); {
		case k.waitsForCheck():
		case k.service.id.Protocol != lb.TCP && h.until <= now:
			hs.readmit(k, now, false)
		case k.service.id.Protocol == lb.TCP && h.trial <= now:
			due = append(due, Trial{k})
		}
	}
	due = inTurn(due)
	due = due[:min(most, len(due))]
	for _, t := range due {
		t.backend.health.Load().trial = now + trialEvery
	}
	for _, k := range hs.b.outliers.ejected {
		h := k.health.Load()
		at := h.until
		if k.service.id.Protocol == lb.TCP {
			at = h.trial
		}
		if k.waitsForCheck() {
			at = now + trialEvery // it may have no check any more by then
		}
		if next == 0 || at < next {
			next = at
		}
	}
	return due, next
}

// waitsForCheck reports whether an ejection ends when the active check passes, and not before: a connection that is
// accepted would show nothing, so that clients would have to find out. It is for holders of Balancer.mu.
func (b *backend) waitsForCheck() bool {
	h := b.health.Load()
	return h.probed && (b.service.id.Protocol != lb.TCP || h.kind != connecting)
}

// inTurn orders trials: the one of each service that has waited for longest, then the second one of each.
func inTurn(due []Trial) []Trial {
	waits := func(t Trial) int64 { return t.backend.health.Load().trial }
	slices.SortStableFunc(due, func(a, b Trial) int { return cmp.Compare(waits(a), waits(b)) })
	turns := make([]int, len(due))
	had := make(map[lb.Name]int)
	order := make([]int, len(due))
	for i, t := range due {
		name := t.backend.service.id.Service()
		turns[i], order[i] = had[name], i
		had[name]++
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(turns[i], turns[j]) })
	sorted := make([]Trial, len(due))
	for i, at := range order {
		sorted[i] = due[at]
	}
	return sorted
}

// Passed says that the backend has accepted: it returns.
func (t Trial) Passed(now int64) {
	b := t.backend.service.balancer
	b.mu.Lock()
	defer b.mu.Unlock()
	if t.backend.isEjected() {
		b.Health().readmit(t.backend, now, true)
	}
}

// Failed says that the backend has not accepted. Once its time is over it is ejected again.
func (t Trial) Failed(now int64) {
	b := t.backend.service.balancer
	b.mu.Lock()
	defer b.mu.Unlock()
	h := t.backend.health.Load()
	if !h.ejected {
		return
	}
	if h.until <= now {
		at, trial := h.at, h.trial
		b.Health().eject(t.backend, now)
		h.at, h.trial = at, trial // it has been out since then, and is tried as often as before
	}
}
