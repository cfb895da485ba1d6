package history

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

const (
	// Every is the time between two samples.
	Every = 5 * time.Second

	// Size is how many are remembered: 15 minutes.
	Size = 180

	// Services is of how many Services samples are remembered.
	Services = 64

	// fresh is how old what Now returns may be: however many ask, counters are read no more often.
	fresh = time.Second

	// shortest is the least time that rates are of.
	shortest = Every * 4 / 5
)

// Sample is what was open at a moment, and what has happened since the sample before.
type Sample struct {
	Time     time.Time `json:"time"`               // when the sample was taken
	Seconds  float32   `json:"seconds"`            // since the sample before; 0: the first of a process
	TookOver bool      `json:"tookOver,omitempty"` // true: the process took over before it
	Open     uint32    `json:"open"`               // connections and flows
	New      uint32    `json:"new"`                // connections and flows that an endpoint was chosen for
	Failures uint32    `json:"failures"`           // of these
	Refused  uint32    `json:"refused"`            // connections and first datagrams
	Changes  uint32    `json:"changes"`            // of Services that were applied
	BytesIn  uint64    `json:"bytesIn"`            // from clients
	BytesOut uint64    `json:"bytesOut"`           // to clients
}

// add adds what has happened of one Service.
func (s *Sample) add(d *Counts) {
	s.Open = narrow(uint64(s.Open) + d.Open)
	s.New = narrow(uint64(s.New) + d.Picks)
	s.Failures = narrow(uint64(s.Failures) + d.Failures)
	s.Refused = narrow(uint64(s.Refused) + d.Refused)
	s.BytesIn += d.BytesIn
	s.BytesOut += d.BytesOut
}

func narrow(n uint64) uint32 { return uint32(min(n, math.MaxUint32)) }

// ring is the last samples, of which next is the oldest once there are Size.
type ring struct {
	samples []Sample
	next    int
}

func (r *ring) put(s Sample) {
	if len(r.samples) < Size {
		r.samples = append(r.samples, s)
		return
	}
	r.samples[r.next] = s
	r.next = (r.next + 1) % Size
}

// all returns them, the oldest first, in a slice of the caller's.
func (r *ring) all() []Sample { return slices.Concat(r.samples[r.next:], r.samples[:r.next]) }

// series is the samples of a Service.
type series struct {
	ring
	traffic float64 // of late, to compare Services by
	seen    bool    // at this look
}

// Recorder takes samples. Make it by New.
type Recorder struct {
	lb      *balancer.Balancer
	changes func() uint64

	mu       sync.Mutex // guards the following
	node     ring
	services map[lb.Name]*series
	applied  uint64
	tookOver bool
	last     [2]look // the newest first
	now      look    // what Now has returned, with rates
	refusals refusals
}

// New returns a Recorder of the services of b. changes returns how many changes were applied so far. Sample calls
// report with the clients that were refused, at a bounded rate; report must not call the Recorder, and may be nil.
func New(b *balancer.Balancer, changes func() uint64, report func(Refusals)) *Recorder {
	return &Recorder{lb: b, changes: changes, services: make(map[lb.Name]*series), refusals: refusals{report: report}}
}

// Run takes samples until ctx ends.
func (r *Recorder) Run(ctx context.Context) {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	for {
		r.Sample(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Seed puts the samples of the process before this one, the oldest first, before those that there are.
func (r *Recorder) Seed(before []Sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	own := r.node.all()
	r.node = ring{}
	for _, s := range append(before, own...) {
		r.node.put(s)
	}
}

// TookOver has the next sample say that this process has taken over from another one.
func (r *Recorder) TookOver() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tookOver = true
}

// Node returns the samples of all Services together, the oldest first.
func (r *Recorder) Node() []Sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.node.all()
}

// Service returns the samples of a Service; false: they are not kept, since others have more traffic, or it has none.
func (r *Recorder) Service(name lb.Name) ([]Sample, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.services[name]
	if s == nil {
		return nil, false
	}
	return s.all(), true
}

// Sample takes a sample at a time that is now, or to tests is.
func (r *Recorder) Sample(now time.Time) {
	changes := r.changes()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refusals.begin(now)
	is, was := r.look(now, r.last[1].services, r.refusals.note), &r.last[0]
	r.refusals.end()
	one := Sample{Time: now, TookOver: r.tookOver}
	r.tookOver = false
	if !was.at.IsZero() {
		one.Seconds = float32(now.Sub(was.at).Seconds())
		one.Changes = narrow(since(changes, r.applied))
	}
	r.applied = changes
	lowest := r.lowest()
	for _, s := range r.services {
		s.seen = false
	}
	is.since(was, func(s *Service, happened Counts) {
		if was.at.IsZero() { // all was counted before, by other processes too
			happened = Counts{Open: happened.Open}
		}
		one.add(&happened)
		lowest = r.follow(s.Of, &happened, &one, lowest)
	})
	for name, s := range r.services {
		if !s.seen { // it has gone
			delete(r.services, name)
		}
	}
	r.node.put(one)
	r.last[0], r.last[1] = is, r.last[0]
	if now.Sub(r.now.at) > time.Minute { // none looks any more
		r.now = look{}
	}
}

// follow adds what has happened of a Service to its samples, if they are kept. A Service with more traffic takes the
// place of the one with the least, which it returns.
func (r *Recorder) follow(name lb.Name, happened *Counts, at *Sample, lowest place) place {
	const decay, perConnection = 16, 64 << 10
	traffic := float64(happened.Picks+happened.Failures+happened.Refused) +
		float64(happened.BytesIn+happened.BytesOut)/perConnection
	s := r.services[name]
	switch {
	case s == nil && traffic == 0:
		return lowest
	case s == nil && len(r.services) >= Services:
		if traffic <= lowest.traffic {
			return lowest
		}
		delete(r.services, lowest.name)
	}
	if s == nil {
		s = &series{traffic: traffic}
		r.services[name] = s
		lowest = r.lowest()
	}
	s.seen = true
	s.traffic += (traffic - s.traffic) / decay
	own := Sample{Time: at.Time, Seconds: at.Seconds, TookOver: at.TookOver}
	own.add(happened)
	s.put(own)
	return lowest
}

// place is a Service whose samples are kept.
type place struct {
	name    lb.Name
	traffic float64
}

// lowest returns the one with the least traffic.
func (r *Recorder) lowest() place {
	least := place{traffic: math.Inf(1)}
	for name, s := range r.services {
		if s.traffic < least.traffic || s.traffic == least.traffic && name.Compare(least.name) < 0 {
			least = place{name, s.traffic}
		}
	}
	return least
}

// since is how far a counter has come; 0 where what was counted has gone.
func since(is, was uint64) uint64 { return is - min(is, was) }

// Now returns what each Service does, ordered by name, and when that was so. It is the same for all who ask within a
// second, and not to be written to.
func (r *Recorder) Now() ([]Service, time.Time) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.now.at) < fresh {
		return r.now.services, r.now.at
	}
	is := r.look(now, nil, func(*balancer.Sum) {})
	base := &r.last[0]
	if now.Sub(base.at) < shortest {
		base = &r.last[1]
	}
	if !base.at.IsZero() {
		seconds := now.Sub(base.at).Seconds()
		is.since(base, func(s *Service, happened Counts) { s.Rates = ratesOf(&happened, seconds) })
	}
	r.now = is
	return is.services, is.at
}

// look reads the counters of all Services, into memory that may be written to, and shows them to also.
func (r *Recorder) look(now time.Time, into []Service, also func(*balancer.Sum)) look {
	l := look{now, slices.Grow(into[:0], len(r.last[0].services))}
	r.lb.Counters().Sums(func(port *balancer.Sum) {
		l.add(port)
		also(port)
	})
	order := func(a, b Service) int { return a.Of.Compare(b.Of) }
	if !slices.IsSortedFunc(l.services, order) { // what is about to go comes last, and may have ports that stay
		slices.SortStableFunc(l.services, order)
	}
	return l
}

// look is what was counted of all Services at a moment, ordered by name.
type look struct {
	at       time.Time
	services []Service
}

// add adds a service port.
func (l *look) add(port *balancer.Sum) {
	name := port.Service.ID.Service()
	if last := len(l.services) - 1; last < 0 || l.services[last].Of != name {
		l.services = append(l.services, Service{Of: name, First: port.Service})
	}
	l.services[len(l.services)-1].add(port)
}

// since calls yield with each Service and what has happened of it since an earlier look.
func (l *look) since(was *look, yield func(s *Service, happened Counts)) {
	at := 0
	for i := range l.services {
		s := &l.services[i]
		for at < len(was.services) && was.services[at].Of.Compare(s.Of) < 0 {
			at++
		}
		before := Counts{}
		if at < len(was.services) && was.services[at].Of == s.Of {
			before = was.services[at].Counts
		}
		yield(s, Counts{Open: s.Open, Picks: since(s.Picks, before.Picks), Failures: since(s.Failures, before.Failures),
			Refused: since(s.Refused, before.Refused), BytesIn: since(s.BytesIn, before.BytesIn),
			BytesOut: since(s.BytesOut, before.BytesOut)})
	}
}
