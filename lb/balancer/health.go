package balancer

import (
	"errors"
	"net/netip"
	"sync/atomic"
)

// What is known of how backends do.

// kind is a kind of failure, of which each is counted by itself.
type kind uint8

const (
	connecting kind = iota // the backend has not accepted, or has not answered the flow
	speaking               // it has accepted, and has reset the connection before the first byte
	kinds                  // how many there are in a row

	mixed = kinds // too many of all
)

// runs says for a service whether a backend has succeeded since another one began to fail.
type runs struct {
	begun     atomic.Uint64 // how often a backend began to fail
	succeeded atomic.Uint64 // what begun was when a backend has succeeded last
}

// run is one of failures.
type run struct {
	failures  atomic.Uint32 // in a row
	since     atomic.Uint64 // runs.begun of its service when they began
	reporters reporters
}

// health is what is known of a backend that has failed, or starts slowly.
type health struct {
	runs  [kinds]run
	start atomic.Pointer[start] // nil unless it starts slowly

	// Guarded by Balancer.mu. Times are on the clock of Flow.Now.
	ejected   bool
	times     int64 // ejections in a row
	at, until int64 // of the ejection
	returned  int64 // when the last one has ended
	trial     int64 // when the next trial is due
	kind      kind  // of the failures that have ejected it last
	reason    string
	// unanswered says that the last failure has cost a client what it had sent.
	unanswered bool

	probed  bool // it has an active check by the protocol of its service
	failing bool // its active check fails, for why
	why     string

	// What had been counted when JudgeShares looked last.
	picks, failed uint64
}

// Answered says that the backend has accepted a connection, or answered a flow.
func (c Choice) Answered() { c.succeeded(connecting) }

// Spoke says that the backend has sent the first byte of a connection, or ended its stream.
func (c Choice) Spoke() { c.succeeded(speaking) }

func (c Choice) succeeded(in kind) {
	if c.backend == nil {
		return
	}
	s := &c.backend.service.runs[in]
	if run := s.begun.Load(); s.succeeded.Load() != run { // seldom: a backend began to fail since
		s.succeeded.Store(run)
	}
	if h := c.backend.health.Load(); h != nil && h.runs[in].failures.Load() != 0 {
		h.runs[in].failures.Store(0)
	}
}

// Failed is Done of a connection that could not be made, because of what the backend, not the client or this host, did
// wrong. now is on the clock of Flow.Now. It may eject the backend, and does not wait for Update.
func (c Choice) Failed(err error, now int64) {
	c.blame(connecting, err, netip.Addr{}, now) // first: its place is no other client's once it is ejected
	c.Done(err)
}

// WasReset is Done of a connection of a client that the backend has reset before the first byte. It may eject the
// backend as Failed may, but each client counts once in an interval (reporters), since it may have caused the reset.
func (c Choice) WasReset(err error, client netip.Addr, now int64) {
	c.blame(speaking, err, client, now)
	c.Done(err)
}

// ExpectsAnswers reports whether a flow that is not answered has failed (Service.ExpectsAnswers).
func (c Choice) ExpectsAnswers() bool { return c.Policies().UDPResponses > 0 }

// NotAnswered says that a flow of a client, which goes on, was not answered though that was to be expected. It may
// eject the backend as WasReset may.
func (c Choice) NotAnswered(err error, client netip.Addr, now int64) {
	if c.backend != nil {
		c.backend.failures.Add(1)
		c.blame(connecting, err, client, now)
	}
}

// blame counts a failure of the backend, and ejects it if there are too many. client is who can have brought it about,
// if any.
func (c Choice) blame(in kind, err error, client netip.Addr, now int64) {
	if c.backend == nil {
		return
	}
	k := c.backend
	if in == connecting {
		k.observe(failedCosts, now)
	}
	r := &k.record().runs[in]
	if r.failures.Load() == 0 {
		r.since.Store(k.service.runs[in].begun.Add(1))
		r.reporters.forget()
	}
	b := k.service.balancer
	if client.IsValid() && !r.reporters.believe(client, now, b.Outlier.Interval) {
		return
	}
	if int(r.failures.Add(1)) < max(2, b.Outlier.ConsecutiveFailures) || !k.is(eligible) {
		return
	}
	if b.mu.TryLock() { // else the next failure does it
		defer b.mu.Unlock()
		k.record().unanswered = in == connecting && client.IsValid()
		b.Health().judge(k, in, err, now)
	}
}

// BackendHealth is what a Balancer remembers of the failures of a backend. Times are on the clock of Flow.Now.
type BackendHealth struct {
	Failures [kinds]uint32 // connects that have failed in a row, and connections that were reset before the first byte
	Ejected  bool
	Times    int64 // ejections in a row
	Returned int64 // when the last one has ended
	At       int64 // when this one began
	Until    int64 // when it ends
	Trial    int64 // when the next trial is due
	Kind     uint8 // of the failures that have ejected it last
	Reason   string
	Failing  bool   // its active check fails
	Why      string // it does
}

// remember returns what is to outlive this Balancer. The caller holds its mu.
func (b *backend) remember() (m BackendHealth) {
	h := b.health.Load()
	if h == nil {
		return m
	}
	for in := range h.runs {
		m.Failures[in] = h.runs[in].failures.Load()
	}
	m.Times, m.Returned, m.Failing, m.Why = h.times, h.returned, h.failing, h.why
	if h.ejected {
		m.Ejected, m.At, m.Until, m.Trial, m.Kind, m.Reason = true, h.at, h.until, h.trial, uint8(h.kind), h.reason
	}
	return m
}

// resume makes a backend one of which another Balancer has remembered m, and reports whether it is bad now or
// was before. The caller holds b.mu.
func (hs Health) resume(k *backend, m *BackendHealth) (bad bool) {
	if hs.b.Outlier.FailurePercentage > 0 { // what was counted before is none of the first interval
		h, n := k.record(), k.counts()
		h.picks, h.failed = n.Picks, n.Failures
	}
	if k.condition.Load()&^marks == 0 || k.health.Load() == nil && *m == (BackendHealth{}) {
		return false // it has left, or gets no connections anyhow
	}
	h := k.record()
	bad = k.isBad() || m.Ejected || m.Failing
	hs.forget(k)
	hs.setFailing(k, m.Failing, m.Why)
	for in := range h.runs {
		h.runs[in].since.Store(k.service.runs[in].begun.Add(1))
		h.runs[in].failures.Store(m.Failures[in])
	}
	h.times, h.returned = m.Times, m.Returned
	h.at, h.until, h.trial, h.kind, h.reason = m.At, m.Until, m.Trial, kind(m.Kind), m.Reason
	if m.Ejected {
		hs.addEjected(k)
	}
	return bad
}

// leaves forgets all that is known of a backend that leaves the table. The caller holds b.mu.
func (hs Health) leaves(k *backend) {
	hs.forget(k)
	if k.isBad() {
		hs.setFailing(k, false, "")
	}
	if h := k.health.Load(); h != nil {
		h.times, h.returned = 0, 0
	}
}

// record returns the health of a backend, which has one from now on.
func (b *backend) record() *health {
	h := b.health.Load()
	if h == nil {
		b.health.CompareAndSwap(nil, new(health))
		h = b.health.Load()
	}
	return h
}

// JudgeShares ejects backends of which too large a share has failed since it was called last, and returns when to call
// it next, in ns on the clock of Flow.Now; 0: it is not needed (Outlier.FailurePercentage). It looks at services of
// which a backend has ever failed.
func (hs Health) JudgeShares(now int64) (next int64) {
	o := &hs.b.Outlier
	if o.FailurePercentage <= 0 {
		return 0
	}
	hs.b.mu.Lock()
	defer hs.b.mu.Unlock()
	if now < hs.b.outliers.judged {
		return hs.b.outliers.judged
	}
	snap := hs.b.load()
	for _, slot := range snap.table.Slots() {
		if s := snap.service(slot); s.state.hasFailed() && hs.ejects(s.state.policies.Load()) {
			hs.judgeService(slot, now)
		}
	}
	hs.b.outliers.judged = now + max(1, o.Interval)
	return hs.b.outliers.judged
}

// hasFailed reports whether a backend ever has.
func (s *state) hasFailed() bool {
	return s.runs[connecting].begun.Load()+s.runs[speaking].begun.Load() > 0
}

// judgeService does so for one service, given its slot. The caller holds b.mu.
func (hs Health) judgeService(slot int32, now int64) {
	o := &hs.b.Outlier
	hosts := 0
	var guilty []*backend
	backends := hs.b.load().service(slot).backends
	for _, k := range backends {
		h, n := k.record(), k.counts()
		volume, failed := n.Picks-h.picks, n.Failures-h.failed
		h.picks, h.failed = n.Picks, n.Failures
		if volume < uint64(o.FailureRequestVolume) || volume == 0 {
			continue
		}
		hosts++
		if failed*100 >= uint64(o.FailurePercentage)*volume && !h.ejected && k.is(eligible) {
			guilty = append(guilty, k)
		}
	}
	if hosts < o.FailureMinimumHosts {
		return
	}
	if len(guilty) == hosts { // all have the same fault: it is that of our own network
		hs.b.outliers.spared.Add(uint64(hosts))
		return
	}
	for _, k := range guilty {
		hs.ejectFrom(slot, hs.b.load().service(slot), k, mixed, errShare, now)
	}
}

// errShare is the reason of JudgeShares.
var errShare = errors.New("too large a share of its connections has failed")
