package balancer

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/sluice-lb/sluice/lb"
)

// Outlier ejection: backends that fail while others of their service answer get no new connections for a time. The
// words and defaults are those of Envoy's outlier detection (outlier_detection.proto), and so are the rules, but for
// these: a backend is ejected only if another one of its service has answered since its failures began, so that a fault
// of our own network, which all backends have, ejects none; and an ejected one comes back as soon as a trial succeeds.
//
// The rules: ConsecutiveFailures failures in a row eject a backend ([Health.judge]), unless too many are ejected
// already. Connects that fail and connections that are reset before the first byte are counted apart, since a backend
// that resets has accepted before; what a client can cause counts once for it (reporters).
// FailurePercentage, where it is given, ejects by the share of an Interval ([Health.JudgeShares]). A backend stays
// ejected for BaseEjectionTime times its ejections in a row, of which each Interval without one takes one off. Trials
// ([Health.Trials]) begin after a thirtieth of that time, one each second, and the first that succeeds ends it. At
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
func (hs Health) judge(k *backend, in kind, err error, now int64) {
	h := k.health.Load()
	slot, s := hs.slotOf(k)
	if s == nil || h.ejected || !k.is(eligible) || !hs.ejects(s.state.policies.Load()) {
		return // it may have left meanwhile
	}
	h.runs[in].failures.Store(0)
	if k.service.runs[in].succeeded.Load() < h.runs[in].since.Load() {
		hs.b.outliers.spared.Add(1)
		return
	}
	hs.ejectFrom(slot, s, k, in, err, now)
}

// ejectFrom ejects a backend of a service, unless too many are. The caller holds b.mu.
func (hs Health) ejectFrom(slot int32, s *service, k *backend, in kind, err error, now int64) {
	h := k.health.Load()
	ejected := s.state.ejected + 1
	if ejected*100 > hs.b.Outlier.MaxEjectionPercent*s.eligibles || ejected >= s.eligibles {
		hs.b.outliers.overflow.Add(1)
		return
	}
	h.times = max(0, h.times-(now-h.returned)/max(1, hs.b.Outlier.Interval))
	h.kind, h.reason = in, err.Error()
	hs.eject(k, now)
	hs.b.outliers.enforced.Add(1)
	hs.addEjected(k)
	s.state.ejected++
	hs.rebuildSoon(slot, s)
	hs.notify(lb.Ejection{Service: k.service.id, Backend: k.addr, Err: err, Time: h.until - now, Times: int(h.times)})
}

// eject sets how long a backend is ejected for, once more in a row.
func (hs Health) eject(k *backend, now int64) {
	h, o := k.health.Load(), &hs.b.Outlier
	longest := max(o.BaseEjectionTime, o.MaxEjectionTime)
	if h.times == 0 || h.times*o.BaseEjectionTime < longest {
		h.times++
	}
	time := min(h.times*o.BaseEjectionTime, longest)
	if h.times > 1 && h.unanswered && k.service.id.Protocol == lb.UDP {
		time = longest // its return has cost clients their datagrams
	}
	h.at, h.until, h.trial = now, now+time, now+time/trialShare
	if h.kind != connecting {
		h.trial = h.until // it accepts all the while, so that a trial shows nothing
	}
}

// addEjected notes that a backend is ejected.
func (hs Health) addEjected(k *backend) {
	k.health.Load().ejected = true
	hs.b.outliers.ejected = append(hs.b.outliers.ejected, k)
	hs.b.outliers.active.Add(1)
}

// readmit ends an ejection. Without a trial the first failure is one too many.
func (hs Health) readmit(k *backend, now int64, tried bool) {
	h := k.health.Load()
	accepts := h.kind != connecting
	hs.forget(k)
	h.returned = now
	k.latency.Store(0) // what its failures have counted
	if in := min(h.kind, speaking); !tried || accepts {
		h.runs[in].since.Store(k.service.runs[in].begun.Add(1))
		h.runs[in].failures.Store(uint32(max(2, hs.b.Outlier.ConsecutiveFailures) - 1))
	}
	if slot, s := hs.slotOf(k); s != nil {
		hs.rebuildSoon(slot, s)
	}
	hs.notify(lb.Ejection{Service: k.service.id, Backend: k.addr, Returned: true, Time: now - h.at,
		Times: int(h.times)})
}

// forget makes a backend one that has not failed, without a word. The caller holds b.mu.
func (hs Health) forget(k *backend) {
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
	hs.b.outliers.ejected = slices.DeleteFunc(hs.b.outliers.ejected, func(o *backend) bool { return o == k })
	hs.b.outliers.active.Add(-1)
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
func (hs Health) ejects(p *lb.Policies) bool {
	return p.OutlierEjection == lb.On || p.OutlierEjection == lb.NotGiven && hs.b.Outlier.Enabled
}

// leaveOut takes bad backends out of the sets that they were to be in, unless too few would stay.
func (hs Health) leaveOut(p *lb.Policies, backends []*backend) {
	if len(hs.b.outliers.ejected)+hs.b.outliers.failing == 0 {
		return
	}
	if !hs.ejects(p) {
		for _, k := range backends {
			hs.forget(k)
		}
	}
	for in := range lb.Sets {
		all, stay := 0, 0
		for _, k := range backends {
			if k.nextCondition&conditionOf(in) != 0 {
				all++
				if !k.isBad() {
					stay++
				}
			}
		}
		if stay == all || stay == 0 || stay*100 < hs.b.Outlier.PanicThreshold*all {
			continue
		}
		for _, k := range backends {
			if k.nextCondition&conditionOf(in) != 0 && k.isBad() {
				k.nextCondition = k.nextCondition&^conditionOf(in) | leftOut
			}
		}
	}
	for _, k := range backends {
		if k.service.id.Protocol == lb.UDP && k.nextCondition&leftOut != 0 && k.nextCondition&eligible == 0 {
			k.nextCondition &^= live // else a client that never pauses would stay there
		}
	}
}

// slotOf returns the slot of the service that a backend is or was one of; nil: it is not in the table.
func (hs Health) slotOf(k *backend) (int32, *service) {
	snap := hs.b.load()
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
// 0.04 ms for these, and 7 ms for 20,000. Others wait for [Health.Trials], for as many ejections as there are until
// then.
const fewBackends = 256

// rebuildSoon makes a service ready anew, at once or soon, since its ejections have changed.
func (hs Health) rebuildSoon(slot int32, s *service) {
	few := fewBackends
	if s.method != nil {
		few /= 8 // Maglev's table takes that much longer
	}
	if len(s.backends) <= few {
		hs.rebuild(slot, s)
		return
	}
	if hs.b.outliers.changed == nil {
		hs.b.outliers.changed = make(map[*state]struct{})
	}
	hs.b.outliers.changed[s.state] = struct{}{}
}

// rebuildChanged does what rebuildSoon has left. The caller holds b.mu.
func (hs Health) rebuildChanged() {
	snap := hs.b.load()
	for of := range hs.b.outliers.changed {
		if slot, ok := snap.table.SlotOf(&of.id); ok && snap.service(slot).state == of { // else it has gone
			hs.rebuild(slot, snap.service(slot))
		}
	}
	clear(hs.b.outliers.changed)
}

// rebuild makes a service ready anew, since its ejections have changed.
func (hs Health) rebuild(slot int32, was *service) {
	hs.b.updates++
	snap := hs.b.load()
	is := hs.b.prepare(snap.table.In(slot), was)
	snap.at(slot).Store(is)
	hs.b.finish(is, was)
}

func (hs Health) notify(e lb.Ejection) {
	if hs.b.OnEjection != nil {
		hs.b.OnEjection(e)
	}
}

// Stats returns what was counted.
func (hs Health) Stats() OutlierStats {
	o := &hs.b.outliers
	return OutlierStats{o.active.Load(), o.enforced.Load(), o.overflow.Load(), o.spared.Load()}
}

// WithoutEjected returns s, one of the table, as paths are to have it that know nothing of ejections: backends that are
// left out of every set that they would be in are not ready, but serve what is there. It returns s itself if there are
// none.
func (hs Health) WithoutEjected(s *lb.Service) *lb.Service {
	hs.b.mu.Lock()
	defer hs.b.mu.Unlock()
	if len(hs.b.outliers.ejected)+hs.b.outliers.failing == 0 {
		return s
	}
	hs.rebuildChanged()
	known := hs.b.service(s.ID)
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
