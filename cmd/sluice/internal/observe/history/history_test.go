package history

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// world is a Balancer of services at 10.96.x.y:80, and its Recorder.
type world struct {
	*Recorder
	t        *testing.T
	now      time.Time
	changes  uint64
	reported []Refusals
}

func (w *world) report(r Refusals) { w.reported = append(w.reported, r) }

func serviceAt(i int) *lb.Service {
	s := &lb.Service{ID: lb.ID{Namespace: "default", Name: fmt.Sprintf("s%05d", i), Protocol: lb.TCP},
		Addresses: []lb.Address{{Addr: address(i)}}}
	for e := range 3 {
		s.Backends = append(s.Backends, lb.Backend{Ready: true,
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(e), byte(i >> 8), byte(i)}), 8080)})
	}
	return s
}

func address(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80)
}

func (w *world) serve(services ...*lb.Service) {
	w.t.Helper()
	table, err := lb.NewTable(services, lb.Node{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.lb.Update(table)
}

func newWorld(t *testing.T, services ...*lb.Service) *world {
	t.Helper()
	w := &world{t: t, now: time.Now().Add(-time.Hour)}
	w.Recorder = New(new(balancer.Balancer), func() uint64 { return w.changes }, w.report)
	w.serve(services...)
	return w
}

// clients has n come to a service, of which so many fail, and returns those that stay.
func (w *world) clients(of, n, fail int) (open []balancer.Choice) {
	w.t.Helper()
	for i := range n {
		c, err := w.lb.Pick(balancer.Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: address(of)}})
		if err != nil {
			w.t.Fatal(err)
		}
		m := balancer.Meter{}
		m.Add(c, 10, 100)
		m.Flush(c)
		if i < fail {
			c.Done(errors.New("refused"))
		} else {
			open = append(open, c)
		}
	}
	return open
}

// tick takes a sample 5 s after the last one and returns it.
func (w *world) tick() Sample {
	w.now = w.now.Add(Every)
	w.Sample(w.now)
	all := w.Node()
	return all[len(all)-1]
}

// TestSamples: a sample has what is open and what has happened since the one before, and the first of a process, which
// knows of none before, only what is open.
func TestSamples(t *testing.T) {
	w := newWorld(t, serviceAt(0), serviceAt(1))
	open := w.clients(0, 4, 1)
	w.changes = 5
	if s := w.tick(); s.Open != 3 || s.New != 0 || s.Seconds != 0 || s.BytesIn != 0 || s.Changes != 0 || s.TookOver {
		t.Errorf("the first sample is %+v", s)
	}
	w.clients(0, 2, 1)
	w.clients(1, 3, 0)
	w.changes = 7
	if s := w.tick(); s.Open != 7 || s.New != 5 || s.Failures != 1 || s.Seconds != 5 || s.BytesIn != 50 ||
		s.BytesOut != 500 || s.Changes != 2 {
		t.Errorf("the second sample is %+v", s)
	}
	for _, c := range open {
		c.Done(nil)
	}
	w.serve(serviceAt(0), serviceAt(2), &lb.Service{ID: lb.ID{Namespace: "default", Name: "s00003", Protocol: lb.TCP},
		Addresses: []lb.Address{{Addr: address(3)}}}) // 1 has gone with what was counted of it
	if _, err := w.lb.Pick(balancer.Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: address(3)}}); err == nil {
		t.Error("a Service without endpoints has one")
	}
	w.clients(2, 1, 0)
	if s := w.tick(); s.Open != 2 || s.New != 1 || s.Refused != 1 || s.BytesIn != 10 {
		t.Errorf("the third sample is %+v", s)
	}
	if _, ok := w.Service(lb.Name{Namespace: "default", Name: "s00001"}); ok {
		t.Error("samples of a Service that has gone are kept")
	}
	own, ok := w.Service(lb.Name{Namespace: "default", Name: "s00000"})
	if !ok || len(own) != 2 || own[0].New != 2 || own[0].Failures != 1 || own[1].New != 0 || own[1].Open != 1 {
		t.Errorf("a Service has %+v", own)
	}
}

// TestRing: 180 samples are kept, those of the process before come first, and the first of this one says so.
func TestRing(t *testing.T) {
	w := newWorld(t, serviceAt(0))
	before := make([]Sample, Size)
	for i := range before {
		before[i] = Sample{Time: w.now.Add(time.Duration(i-Size) * Every), Seconds: 5, New: uint32(i)}
	}
	w.Seed(before)
	w.TookOver()
	if s := w.tick(); !s.TookOver || s.Seconds != 0 {
		t.Errorf("the first sample is %+v", s)
	}
	all := w.Node()
	if len(all) != Size || all[0].New != 1 || !slices.IsSortedFunc(all, func(a,
		b Sample) int {
		return a.Time.Compare(b.Time)
	}) {
		t.Errorf("there are %d samples, the first is %+v", len(all), all[0])
	}
	if s := w.tick(); s.TookOver || s.Seconds != 5 {
		t.Errorf("the second sample is %+v", s)
	}
}

// TestRefusals: refused clients are reported once per Service port, reason and ReportEvery. Clients of a former process
// are not, and a sample makes at most one report.
func TestRefusals(t *testing.T) {
	all := []*lb.Service{serviceAt(0), serviceAt(1)}
	w := newWorld(t, all...)
	refuse := func(of, n int, why lb.End) {
		for range n {
			w.lb.Ended(lb.Frontend{Protocol: lb.TCP, Addr: address(of)}, why)
		}
	}
	reported := func(want ...Refusals) {
		t.Helper()
		w.tick()
		if !slices.Equal(w.reported, want) {
			t.Errorf("reported %+v, want %+v", w.reported, want)
		}
		w.reported = nil
	}
	refuse(0, 7, lb.OverClient)
	reported()
	refuse(0, 3, lb.OverClient)
	refuse(0, 1, lb.QueueTimeout)
	refuse(1, 9, lb.IdleEnd) // no policy refuses it
	id := all[0].ID
	reported(Refusals{id, lb.QueueTimeout, 1, Every})
	reported(Refusals{id, lb.OverClient, 3, 2 * Every})
	for range ReportEvery/Every - 1 {
		refuse(0, 1, lb.OverClient)
		reported()
	}
	reported(Refusals{id, lb.OverClient, uint64(ReportEvery/Every - 1), ReportEvery})
	w.serve(all[1:]...)
	reported()
	w.serve(all...)
	refuse(0, 1, lb.OverClient)
	reported(Refusals{id, lb.OverClient, 1, Every})
}

// TestBound: of 300 Services with traffic the samples of 64 are kept, those with the most.
func TestBound(t *testing.T) {
	const services = 300
	var all []*lb.Service
	for i := range services {
		all = append(all, serviceAt(i))
	}
	w := newWorld(t, all...)
	w.tick()
	for range 3 {
		for i := range services {
			for _, c := range w.clients(i, 1+i, 0) {
				c.Done(nil)
			}
		}
		w.tick()
	}
	if len(w.services) != Services {
		t.Errorf("samples of %d Services are kept", len(w.services))
	}
	for i := services - Services; i < services; i++ {
		if s, ok := w.Service(all[i].ID.Service()); !ok || len(s) != 3 {
			t.Errorf("of Service %d of %d there are %d samples", i, services, len(s))
		}
	}
}

// TestNow: rates are those since a look that is old enough, a Service is all of its ports, and who asks again within a
// second gets the same.
func TestNow(t *testing.T) {
	second := serviceAt(1)
	second.ID.Name, second.ID.Port = "s00000", "second"
	second.Backends[1].Ready = false
	w := newWorld(t, serviceAt(0), second, &lb.Service{ID: lb.ID{Namespace: "x", Name: "none", Protocol: lb.TCP}})
	if all, _ := w.Now(); len(all) != 2 || all[0].Rates.Known || all[0].State() != Partial || all[1].State() != Down ||
		all[0].Ports != 2 || all[0].Endpoints != 3 || all[0].Eligible != 2 {
		t.Errorf("before any sample there is %+v", all)
	}
	w.now = time.Now().Add(-10*time.Second - Every)
	w.tick()
	w.clients(0, 20, 0)
	w.clients(1, 20, 10)
	again, _ := w.Now()
	if again[0].Open != 0 {
		t.Errorf("what was read within a second is read again: %+v", again[0])
	}
	w.Recorder.now = look{} // a second passes
	all, _ := w.Now()
	s := &all[0]
	if !s.Rates.Known || s.Rates.New < 3.9 || s.Rates.New > 4 || s.Rates.Failures < 0.97 || s.Open != 30 ||
		s.State() != Failing || s.Rates.BytesOut < 390 {
		t.Errorf("the rates are %+v, %v", s, s.State())
	}
}

// BenchmarkSample is what a look at 10,000 Services at rest costs, every 5 s.
func BenchmarkSample(b *testing.B) {
	var all []*lb.Service
	for i := range 10000 {
		all = append(all, serviceAt(i))
	}
	table, err := lb.NewTable(all, lb.Node{})
	if err != nil {
		b.Fatal(err)
	}
	r := New(new(balancer.Balancer), func() uint64 { return 0 }, func(Refusals) {})
	r.lb.Update(table)
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(Every)
		r.Sample(now)
	}
}
