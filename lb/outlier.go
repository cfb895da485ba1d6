package lb

import (
	"net/netip"
	"slices"
	"sync/atomic"
)

// Outlier ejection: backends that fail while others of their service answer get no new connections for a time. The
// words and defaults are those of Envoy's outlier detection (outlier_detection.proto), and so are the rules, but for
// these: a backend is ejected only if another one of its service has answered since its failures began, so that a fault
// of our own network, which all backends have, ejects none; and an ejected one comes back as soon as a trial succeeds.
//
// The rules: ConsecutiveFailures failures in a row eject a backend ([Balancer.judge]), unless too many are ejected
// already. Connects that fail and connections that are reset before the first byte are counted apart, since a backend
// that resets has accepted before; what a client can cause counts once for it (reporters).
// FailurePercentage, where it is given, ejects by the share of an Interval ([Balancer.JudgeShares]). A backend stays
// ejected for BaseEjectionTime times its ejections in a row, of which each Interval without one takes one off. Trials
// ([Balancer.Trials]) begin after a thirtieth of that time, one each second, and the first that succeeds ends it. At
// its end a failed trial ejects again; where no trial can be made, for all but TCP, the backend returns, and its first
// failure ejects it again. In a ring where all backends, or more than PanicThreshold allows, are ejected, ejections do
// not count.

const (
	trialEvery = int64(1e9) // between two trials of a backend, in ns
	trialShare = 30         // the part of an ejection that passes before the first one
)

// OutlierStats counts ejections of all services.
type OutlierStats struct {
	Active   int64  // backends that are ejected now
	Enforced uint64 // ejections
	Overflow uint64 // those that were left out because of MaxEjectionPercent
	Spared   uint64 // those that were left out because no other backend of the service had answered meanwhile
}

// outliers are the backends that are ejected and when JudgeShares is due, guarded by Balancer.mu, and what is counted.
type outliers struct {
	ejected                    []*backend
	failing                    int                 // how many fail their checks
	changed                    map[*state]struct{} // services with other ejections than their rings
	judged                     int64
	active                     atomic.Int64
	enforced, overflow, spared atomic.Uint64
}

// judge ejects a backend that has failed too often in a row, unless the rules spare it. The caller holds b.mu.
func (b *Balancer) judge(k *backend, in kind, err error, now int64) {
	h := k.health.Load()
	slot, s := b.slotOf(k)
	if s == nil || h.ejected || !k.is(eligible) || !b.ejects(s.state.policies.Load()) {
		return // it may have left meanwhile
	}
	h.runs[in].failures.Store(0)
	if k.service.runs[in].succeeded.Load() < h.runs[in].since.Load() {
		b.outliers.spared.Add(1)
		return
	}
	b.ejectFrom(slot, s, k, in, err, now)
}

// ejectFrom ejects a backend of a service, unless too many are. The caller holds b.mu.
func (b *Balancer) ejectFrom(slot int32, s *service, k *backend, in kind, err error, now int64) {
	h := k.health.Load()
	ejected := s.state.ejected + 1
	if ejected*100 > b.Outlier.MaxEjectionPercent*s.eligibles || ejected >= s.eligibles {
		b.outliers.overflow.Add(1)
		return
	}
	h.times = max(0, h.times-(now-h.returned)/max(1, b.Outlier.Interval))
	h.kind, h.reason = in, err.Error()
	b.eject(k, now)
	b.outliers.enforced.Add(1)
	b.addEjected(k)
	s.state.ejected++
	b.rebuildSoon(slot, s)
	b.notify(Ejection{Service: k.service.id, Backend: k.addr, Err: err, Time: h.until - now, Times: int(h.times)})
}

// eject sets how long a backend is ejected for, once more in a row.
func (b *Balancer) eject(k *backend, now int64) {
	h, o := k.health.Load(), &b.Outlier
	longest := max(o.BaseEjectionTime, o.MaxEjectionTime)
	if h.times == 0 || h.times*o.BaseEjectionTime < longest {
		h.times++
	}
	time := min(h.times*o.BaseEjectionTime, longest)
	if h.times > 1 && h.unanswered && k.service.id.Protocol == UDP {
		time = longest // its return has cost clients their datagrams
	}
	h.at, h.until, h.trial = now, now+time, now+time/trialShare
	if h.kind != connecting {
		h.trial = h.until // it accepts all the while, so that a trial shows nothing
	}
}

// addEjected notes that a backend is ejected.
func (b *Balancer) addEjected(k *backend) {
	k.health.Load().ejected = true
	b.outliers.ejected = append(b.outliers.ejected, k)
	b.outliers.active.Add(1)
}

// readmit ends an ejection. Without a trial the first failure is one too many.
func (b *Balancer) readmit(k *backend, now int64, tried bool) {
	h := k.health.Load()
	accepts := h.kind != connecting
	b.forget(k)
	h.returned = now
	k.latency.Store(0) // what its failures have counted
	if in := min(h.kind, speaking); !tried || accepts {
		h.runs[in].since.Store(k.service.runs[in].begun.Add(1))
		h.runs[in].failures.Store(uint32(max(2, b.Outlier.ConsecutiveFailures) - 1))
	}
	if slot, s := b.slotOf(k); s != nil {
		b.rebuildSoon(slot, s)
	}
	b.notify(Ejection{Service: k.service.id, Backend: k.addr, Returned: true, Time: now - h.at, Times: int(h.times)})
}

// forget makes a backend one that has not failed, without a word. The caller holds b.mu.
func (b *Balancer) forget(k *backend) {
	h := k.health.Load()
	if h == nil {
		return
	}
	for i := range h.runs {
		h.runs[i].failures.Store(0)
	}
	if !h.ejected {
		return
	}
	h.ejected = false
	b.outliers.ejected = slices.DeleteFunc(b.outliers.ejected, func(o *backend) bool { return o == k })
	b.outliers.active.Add(-1)
}

// isEjected is for holders of Balancer.mu.
func (b *backend) isEjected() bool {
	h := b.health.Load()
	return h != nil && h.ejected
}

// isBad reports whether a backend is ejected or fails its checks. It is for holders of Balancer.mu.
func (b *backend) isBad() bool {
	h := b.health.Load()
	return h != nil && (h.ejected || h.failing)
}

// ejects reports whether backends of a service with these policies are ejected.
func (b *Balancer) ejects(p *Policies) bool {
	return p.OutlierEjection == On || p.OutlierEjection == NotGiven && b.Outlier.Enabled
}

// leaveOut takes bad backends out of the sets that they were to be in, unless too few would stay.
func (b *Balancer) leaveOut(p *Policies, backends []*backend) {
	if len(b.outliers.ejected)+b.outliers.failing == 0 {
		return
	}
	if !b.ejects(p) {
		for _, k := range backends {
			b.forget(k)
		}
	}
	for in := range Sets {
		all, stay := 0, 0
		for _, k := range backends {
			if k.nextCondition&conditionOf(in) != 0 {
				all++
				if !k.isBad() {
					stay++
				}
			}
		}
		if stay == all || stay == 0 || stay*100 < b.Outlier.PanicThreshold*all {
			continue
		}
		for _, k := range backends {
			if k.nextCondition&conditionOf(in) != 0 && k.isBad() {
				k.nextCondition = k.nextCondition&^conditionOf(in) | leftOut
			}
		}
	}
	for _, k := range backends {
		if k.service.id.Protocol == UDP && k.nextCondition&leftOut != 0 && k.nextCondition&eligible == 0 {
			k.nextCondition &^= live // else a client that never pauses would stay there
		}
	}
}

// slotOf returns the slot of the service that a backend is or was one of; nil: it is not in the table.
func (b *Balancer) slotOf(k *backend) (int32, *service) {
	snap := b.load()
	slot, ok := snap.table.SlotOf(&k.service.id)
	if !ok {
		return 0, nil
	}
	if s := snap.service(slot); s.state == k.service {
		return slot, s
	}
	return 0, nil
}

// fewBackends is how many a service may have that is made ready anew by the loop that has met the failure: it takes
// 0.04 ms for these, and 7 ms for 20,000. Others wait for [Balancer.Trials], for as many ejections as there are until
// then.
const fewBackends = 256

// rebuildSoon makes a service ready anew, at once or soon, since its ejections have changed.
func (b *Balancer) rebuildSoon(slot int32, s *service) {
	few := fewBackends
	if s.method != nil {
		few /= 8 // Maglev's table takes that much longer
	}
	if len(s.backends) <= few {
		b.rebuild(slot, s)
		return
	}
	if b.outliers.changed == nil {
		b.outliers.changed = make(map[*state]struct{})
	}
	b.outliers.changed[s.state] = struct{}{}
}

// rebuildChanged does what rebuildSoon has left. The caller holds b.mu.
func (b *Balancer) rebuildChanged() {
	snap := b.load()
	for of := range b.outliers.changed {
		if slot, ok := snap.table.SlotOf(&of.id); ok && snap.service(slot).state == of { // else it has gone
			b.rebuild(slot, snap.service(slot))
		}
	}
	clear(b.outliers.changed)
}

// rebuild makes a service ready anew, since its ejections have changed.
func (b *Balancer) rebuild(slot int32, was *service) {
	b.updates++
	snap := b.load()
	is := b.prepare(snap.table.In(slot), was)
	snap.at(slot).Store(is)
	b.finish(is, was)
}

func (b *Balancer) notify(e Ejection) {
	if b.OnEjection != nil {
		b.OnEjection(e)
	}
}

// OutlierStats returns what was counted.
func (b *Balancer) OutlierStats() OutlierStats {
	o := &b.outliers
	return OutlierStats{o.active.Load(), o.enforced.Load(), o.overflow.Load(), o.spared.Load()}
}

// WithoutEjected returns s, one of the table, as paths are to have it that know nothing of ejections: backends that are
// left out of every set that they would be in are not ready, but serve what is there. It returns s itself if there are
// none.
func (b *Balancer) WithoutEjected(s *Service) *Service {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.outliers.ejected)+b.outliers.failing == 0 {
		return s
	}
	b.rebuildChanged()
	known := b.service(s.ID)
	if known == nil {
		return s
	}
	var out map[netip.AddrPort]bool
	for _, k := range known.backends {
		if k.nextCondition&leftOut != 0 && k.nextCondition&eligible == 0 {
			if out == nil {
				out = make(map[netip.AddrPort]bool)
			}
			out[k.addr] = true
		}
	}
	if out == nil {
		return s
	}
	healthy := *s
	healthy.Backends = slices.Clone(s.Backends)
	for i := range healthy.Backends {
		if k := &healthy.Backends[i]; out[k.Addr] {
			k.Ready, k.Terminating, k.Serving = false, false, true
		}
	}
	return &healthy
}
