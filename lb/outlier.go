package lb

import (
	"cmp"
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
// already. It stays ejected for BaseEjectionTime times its ejections in a row, of which each Interval without one takes
// one off. Trials ([Balancer.Trials]) begin after a thirtieth of that time, one each second, and the first that
// succeeds ends it. At its end a failed trial ejects again; where no trial can be made, for all but TCP, the backend
// returns. In a ring where all backends, or more than PanicThreshold allows, are ejected, ejections do not count.

// Outlier is when backends are ejected, and for how long. Times are in nanoseconds. The zero Outlier ejects none, and
// DefaultOutlier is Envoy's, but for MaxEjectionPercent, of which 10 would be none of nine.
type Outlier struct {
	// Enabled says whether backends of services are ejected that do not say so themselves (Service.OutlierEjection).
	Enabled bool

	ConsecutiveFailures int   // failures in a row that eject; less than 2 are 2, as others must have answered meanwhile
	BaseEjectionTime    int64 // of the first ejection
	MaxEjectionTime     int64 // the longest; BaseEjectionTime if that is more
	MaxEjectionJitter   int64 // what an ejection is longer by, at most
	Interval            int64 // time without an ejection that takes one off those in a row
	MaxEjectionPercent  int   // of the eligible backends of a service, of which one stays in any case
	PanicThreshold      int   // percent of a ring that must not be ejected for ejections to count; 0: one backend
}

// DefaultOutlier has the default of every parameter.
var DefaultOutlier = Outlier{Enabled: true, ConsecutiveFailures: 5, BaseEjectionTime: 30e9, MaxEjectionTime: 300e9,
	Interval: 10e9, MaxEjectionPercent: 50, PanicThreshold: 50}

const (
	trialEvery = int64(1e9) // between two trials of a backend, in ns
	trialShare = 30         // the part of an ejection that passes before the first one
)

// Ejection says that a backend was ejected, or has returned.
type Ejection struct {
	Service  ID
	Backend  netip.AddrPort
	Returned bool
	Err      error // the last failure; nil if it has returned
	Time     int64 // how long it is ejected for if no trial succeeds before, or was ejected, in ns
	Times    int   // ejections in a row, this one included
}

// OutlierStats counts ejections of all services.
type OutlierStats struct {
	Active   int64  // backends that are ejected now
	Enforced uint64 // ejections
	Overflow uint64 // those that were left out because of MaxEjectionPercent
	Spared   uint64 // those that were left out because no other backend of the service had answered meanwhile
}

// outliers are the backends that are ejected, guarded by Balancer.mu, and what is counted.
type outliers struct {
	ejected                    []*backend
	active                     atomic.Int64
	enforced, overflow, spared atomic.Uint64
}

// health is what is known of a backend that has failed.
type health struct {
	failures atomic.Uint32 // in a row
	since    atomic.Uint64 // the run of its service (state.runs) in which they began

	// Guarded by Balancer.mu. Times are on the clock of Flow.Now.
	ejected   bool
	times     int64 // ejections in a row
	at, until int64 // of the ejection
	returned  int64 // when the last one has ended
	trial     int64 // when the next trial is due
}

// Answered says that the backend has accepted a connection, or answered a flow.
func (c Choice) Answered() {
	if c.backend == nil {
		return
	}
	s := c.backend.service
	if run := s.runs.Load(); s.answered.Load() != run { // seldom: a backend has begun to fail since
		s.answered.Store(run)
	}
	if h := c.backend.health.Load(); h != nil && h.failures.Load() != 0 {
		h.failures.Store(0)
	}
}

// Failed is Done of a connection that could not be made, because of what the backend, not the client or this host, did
// wrong. now is on the clock of Flow.Now. It may eject the backend, and does not wait for Update.
func (c Choice) Failed(err error, now int64) {
	if c.backend == nil {
		return
	}
	k := c.backend
	k.failures.Add(1)
	k.end()
	k.took(failedCosts, now)
	h := k.health.Load()
	if h == nil {
		k.health.CompareAndSwap(nil, new(health))
		h = k.health.Load()
	}
	if h.failures.Load() == 0 {
		h.since.Store(k.service.runs.Add(1))
	}
	b := k.service.balancer
	if int(h.failures.Add(1)) < max(2, b.Outlier.ConsecutiveFailures) || !k.is(eligible) {
		return
	}
	if b.mu.TryLock() { // else the next failure does it
		defer b.mu.Unlock()
		b.judge(k, err, now)
	}
}

// judge ejects a backend that has failed too often in a row, unless the rules spare it. The caller holds b.mu.
func (b *Balancer) judge(k *backend, err error, now int64) {
	h := k.health.Load()
	slot, s := b.slotOf(k)
	if s == nil || h.ejected || !b.ejects(b.load().table.at(slot)) {
		return
	}
	h.failures.Store(0)
	if k.service.answered.Load() < h.since.Load() {
		b.outliers.spared.Add(1)
		return
	}
	var eligibles, ejected int
	for _, o := range s.backends {
		if o.becomes&(eligible|leftOut) != 0 {
			eligibles++
		}
		if o.isEjected() {
			ejected++
		}
	}
	if ejected++; ejected*100 > b.Outlier.MaxEjectionPercent*eligibles || ejected == eligibles {
		b.outliers.overflow.Add(1)
		return
	}
	h.times = max(0, h.times-(now-h.returned)/max(1, b.Outlier.Interval))
	b.eject(k, now)
	b.outliers.enforced.Add(1)
	b.outliers.ejected = append(b.outliers.ejected, k)
	b.outliers.active.Add(1)
	b.rebuild(slot, s)
	b.notify(Ejection{k.service.id, k.addr, false, err, h.until - now, int(h.times)})
}

// eject sets how long a backend is ejected for, once more in a row.
func (b *Balancer) eject(k *backend, now int64) {
	h, o := k.health.Load(), &b.Outlier
	longest := max(o.BaseEjectionTime, o.MaxEjectionTime)
	if h.times == 0 || h.times*o.BaseEjectionTime < longest {
		h.times++
	}
	time := min(h.times*o.BaseEjectionTime, longest)
	if o.MaxEjectionJitter > 0 {
		time += int64(mix(k.order^uint64(now)) % uint64(o.MaxEjectionJitter))
	}
	h.ejected, h.at, h.until, h.trial = true, now, now+time, now+time/trialShare
}

// Trial is a connection to be made to an ejected backend, to see whether it answers again. Exactly one of its methods
// Passed and Failed is called, or neither if nothing was learnt.
type Trial struct{ backend *backend }

// Backend returns the address to connect to, by TCP.
func (t Trial) Backend() netip.AddrPort { return t.backend.addr }

// Trials returns the trials that are due now, those that have waited for longest and at most so many, and when to ask
// again; 0: no backend is ejected. Backends that return without a trial do so here.
func (b *Balancer) Trials(now int64, most int) (due []Trial, next int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range slices.Clone(b.outliers.ejected) {
		if h := k.health.Load(); k.service.id.Protocol != TCP && h.until <= now {
			b.readmit(k, now)
		} else if k.service.id.Protocol == TCP && h.trial <= now {
			due = append(due, Trial{k})
		}
	}
	slices.SortStableFunc(due, func(a, o Trial) int {
		return cmp.Compare(a.backend.health.Load().trial, o.backend.health.Load().trial)
	})
	due = due[:min(most, len(due))]
	for _, t := range due {
		t.backend.health.Load().trial = now + trialEvery
	}
	for i, k := range b.outliers.ejected {
		h := k.health.Load()
		at := h.until
		if k.service.id.Protocol == TCP {
			at = h.trial
		}
		if i == 0 || at < next {
			next = at
		}
	}
	return due, next
}

// Passed says that the backend has accepted: it returns.
func (t Trial) Passed(now int64) {
	b := t.backend.service.balancer
	b.mu.Lock()
	defer b.mu.Unlock()
	if t.backend.isEjected() {
		b.readmit(t.backend, now)
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
		b.eject(t.backend, now)
		h.at, h.trial = at, trial // it has been out since then, and is tried as often as before
	}
}

// readmit ends an ejection.
func (b *Balancer) readmit(k *backend, now int64) {
	h := k.health.Load()
	b.forget(k)
	h.returned = now
	if slot, s := b.slotOf(k); s != nil {
		b.rebuild(slot, s)
	}
	b.notify(Ejection{k.service.id, k.addr, true, nil, now - h.at, int(h.times)})
}

// forget makes a backend one that has not failed, without a word. The caller holds b.mu.
func (b *Balancer) forget(k *backend) {
	h := k.health.Load()
	if h == nil {
		return
	}
	h.failures.Store(0)
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

// ejects reports whether backends of a service are ejected.
func (b *Balancer) ejects(s *Service) bool {
	switch s.OutlierEjection {
	case "true":
		return true
	case "false":
		return false
	}
	return b.Outlier.Enabled
}

// leaveOut takes ejected backends out of the sets that they were to be in, unless too few would stay.
func (b *Balancer) leaveOut(s *Service, backends []*backend) {
	if len(b.outliers.ejected) == 0 {
		return
	}
	if !b.ejects(s) {
		for _, k := range backends {
			b.forget(k)
		}
		return
	}
	for in := range sets {
		all, stay := 0, 0
		for _, k := range backends {
			if k.becomes&in.condition() != 0 {
				all++
				if !k.isEjected() {
					stay++
				}
			}
		}
		if stay == all || stay == 0 || stay*100 < b.Outlier.PanicThreshold*all {
			continue
		}
		for _, k := range backends {
			if k.becomes&in.condition() != 0 && k.isEjected() {
				k.becomes = k.becomes&^in.condition() | leftOut
			}
		}
	}
}

// slotOf returns the slot of the service that a backend is one of now; nil: it is of none.
func (b *Balancer) slotOf(k *backend) (int32, *service) {
	snap := b.load()
	slot, ok := snap.table.index.slot(k.service.id)
	if !ok {
		return 0, nil
	}
	if s := snap.service(slot); s.state == k.service && slices.Contains(s.backends, k) {
		return slot, s
	}
	return 0, nil
}

// rebuild makes a service ready anew, since its ejections have changed.
func (b *Balancer) rebuild(slot int32, was *service) {
	b.updates++
	snap := b.load()
	is := b.prepare(snap.table.at(slot), was)
	snap.services[slot].Store(is)
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
