package balancer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

var errRefused = errors.New("refused")

// ejecting returns a balancer that ejects, for a service with these backends, and what has happened.
func ejecting(t *testing.T, s lb.Service) (*Balancer, *[]lb.Ejection) {
	b, all := &Balancer{Outlier: lb.DefaultOutlier}, new([]lb.Ejection)
	b.OnEjection = func(e lb.Ejection) { *all = append(*all, e) }
	b.Update(mustTable(t, []lb.Service{s}))
	return b, all
}

// request makes one request as the data path does, while some backends are down, and returns those that were asked.
func request(t *testing.T, b *Balancer, now int64, down ...netip.AddrPort) (asked []netip.AddrPort) {
	t.Helper()
	var tried Tried
	for range 4 {
		c := mustPick(t, b, Flow{Now: now, Tried: &tried})
		asked = append(asked, c.Backend())
		if !slices.Contains(down, c.Backend()) {
			c.Answered()
			c.Done(nil)
			return asked
		}
		c.Failed(errRefused, now)
		tried.Add(c)
	}
	return asked
}

// failUntil makes requests until a backend that is down was asked so many times.
func failUntil(t *testing.T, b *Balancer, times int, now int64, down ...netip.AddrPort) {
	t.Helper()
	for failed := 0; failed < times; {
		for _, to := range request(t, b, now, down...) {
			if slices.Contains(down, to) {
				failed++
			}
		}
	}
}

// After five failures no request goes to the backend, the others have exact turns, and a trial brings it back.
func TestDeadBackendIsEjected(t *testing.T) {
	for _, n := range []int{2, 3, 10, 100} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			b, events := ejecting(t, echo(numbers(n)...))
			dead := address(0)
			failUntil(t, b, 5, 0, dead)
			seen := make(map[netip.AddrPort]int)
			const rounds = 1000
			for range rounds * (n - 1) {
				for _, to := range request(t, b, 0, dead) {
					seen[to]++
				}
			}
			for i := 1; i < n; i++ {
				if seen[address(i)] != rounds {
					t.Errorf("backend %d was asked %d times, want %d", i, seen[address(i)], rounds)
				}
			}
			if text := b.Explain(Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: front}}); !strings.Contains(text, dead.String()+" ejected 0 s ago, for up to 30 s more (1 in a row), as refused: ready") ||
				!strings.Contains(text, fmt.Sprintf("%d of %d endpoints eligible", n-1, n)) {
				t.Errorf("explained as:\n%s", text)
			}
			if one := b.Counters().All()[0].Backends[0]; !one.Health.Ejected || one.Eligible || !one.Live {
				t.Errorf("%+v", one)
			}
			if seen[dead] > 0 || len(*events) != 1 || (*events)[0].Backend != dead {
				t.Errorf("the dead one was asked %d times; %v", seen[dead], *events)
			}
			due, next := b.Health().Trials(second-1, 9)
			if len(due) > 0 || next != second {
				t.Fatalf("trials %v, next %d, want none before 1 s", due, next)
			}
			if due, next = b.Health().Trials(second, 9); len(due) != 1 || due[0].Backend() != dead || next != 2*second {
				t.Fatalf("trials %v, next %d after 1 s", due, next)
			}
			due[0].Failed(second)
			due, _ = b.Health().Trials(2*second, 9)
			due[0].Passed(2 * second)
			seen = make(map[netip.AddrPort]int)
			for range n {
				seen[request(t, b, 2*second)[0]]++
			}
			if len(seen) != n || b.Health().Stats() != (OutlierStats{Enforced: 1}) || !(*events)[1].Returned {
				t.Errorf("returned: %v, %+v, %v", seen, b.Health().Stats(), *events)
			}
		})
	}
}

// A success between failures starts the count anew.
func TestSuccessSetsCountToZero(t *testing.T) {
	b, events := ejecting(t, echo(1, 2))
	for range 20 {
		failUntil(t, b, 4, 0, address(1))
		request(t, b, 0)
		request(t, b, 0)
	}
	if len(*events) > 0 {
		t.Errorf("ejected after four failures in a row: %v", *events)
	}
}

// Where all fail, as when our own network does, none is ejected, at as many services as there are.
func TestBurstEjectsNone(t *testing.T) {
	b, _ := ejecting(t, echo(1, 2, 3))
	request(t, b, 0)
	failUntil(t, b, 300, 0, address(1), address(2), address(3))
	if s := b.Health().Stats(); s.Enforced > 0 || s.Spared == 0 {
		t.Errorf("%+v", s)
	}
	for range 3 {
		request(t, b, 0)
	}
	if s := b.Health().Stats(); s.Enforced > 0 {
		t.Errorf("after it was over: %+v", s)
	}
}

// Backends that die one after the other: half of them are ejected, and the last never.
func TestShareOfEjected(t *testing.T) {
	for n, want := range map[int]uint64{1: 0, 2: 1, 3: 1, 4: 2, 10: 5} {
		b, _ := ejecting(t, echo(numbers(n)...))
		var down []netip.AddrPort
		for i := range n {
			down = append(down, address(i))
			for range 30 * n {
				request(t, b, 0, down...)
			}
		}
		if s := b.Health().Stats(); s.Enforced != want || n > 3 && s.Overflow == 0 {
			t.Errorf("%d backends: %+v, want %d ejected", n, s, want)
		}
	}
}

// Ejections in a row last longer, up to a bound, and are forgotten after healthy intervals.
func TestEjectionTimes(t *testing.T) {
	b, events := ejecting(t, echo(1, 2))
	now, last := int64(0), func() lb.Ejection { return (*events)[len(*events)-1] }
	for i := range int64(12) {
		failUntil(t, b, 5, now, address(1))
		want := min(30*second*(i+1), 300*second)
		if e := last(); e.Returned || e.Time != want {
			t.Fatalf("ejection %d: %+v, want %d ns", i+1, e, want)
		}
		now += want / 30
		due, _ := b.Health().Trials(now, 1)
		due[0].Passed(now)
	}
	now += 80 * second
	failUntil(t, b, 5, now, address(1))
	if e := last(); e.Time != 90*second {
		t.Errorf("after eight intervals of ten: %+v, want 90 s", e)
	}
}

// Where no trial can be made the time decides.
func TestReturnsByTime(t *testing.T) {
	s := echo(1, 2)
	s.Protocol = lb.UDP
	b, events := ejecting(t, s)
	at := Flow{Frontend: lb.Frontend{Protocol: lb.UDP, Addr: front}}
	for len(*events) == 0 {
		c := mustPick(t, b, at)
		if c.Backend() == address(1) {
			c.Failed(errRefused, 0)
		} else {
			c.Answered()
			c.Done(nil)
		}
	}
	if due, next := b.Health().Trials(30*second-1, 9); len(due) > 0 || next != 30*second {
		t.Errorf("%v, %d", due, next)
	}
	if _, next := b.Health().Trials(30*second, 9); next != 0 || !(*events)[1].Returned {
		t.Errorf("next %d, %v", next, *events)
	}
}

// What is turned off for a service ejects nothing, and ends what is ejected.
func TestOutlierEjectionOff(t *testing.T) {
	s := echo(1, 2)
	b, _ := ejecting(t, s)
	failUntil(t, b, 5, 0, address(1))
	s.Policies = &lb.Policies{OutlierEjection: lb.Off}
	b.Update(mustTable(t, []lb.Service{s}))
	if one := b.Counters().All()[0].Backends[0]; one.Health.Ejected || !one.Eligible {
		t.Errorf("%+v", one)
	}
	if n := b.Health().Stats().Active; n != 0 {
		t.Fatalf("%d are ejected still", n)
	}
	failUntil(t, b, 50, 0, address(1))
	if got := b.Health().Stats(); got.Enforced != 1 {
		t.Errorf("%+v", got)
	}
}

// A set of which an ejected backend is the only one keeps it.
func TestLastOfSetStays(t *testing.T) {
	s := echo(1, 2, 3)
	s.Addresses = append(s.Addresses, lb.Address{Addr: netip.MustParseAddrPort("10.0.0.9:80"), Kind: lb.ExternalIP, Local: true})
	s.Backends[0].Local = true
	b, _ := ejecting(t, s)
	failUntil(t, b, 5, 0, address(1))
	c, err := b.Pick(Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: s.Addresses[1].Addr}, Client: client})
	if err != nil || c.Backend() != address(1) || b.Health().Stats().Active != 1 {
		t.Errorf("%v, %v, %+v", c.Backend(), err, b.Health().Stats())
	}
}

// A service of many backends, which takes long to be made ready anew, waits for Trials.
func TestManyBackendsWait(t *testing.T) {
	const n = 2 * fewBackends
	b, events := ejecting(t, echo(numbers(n)...))
	dead := []netip.AddrPort{address(0), address(1), address(2)}
	asked := func() (times int) {
		for range n {
			c := mustPick(t, b, Flow{})
			if slices.Contains(dead, c.Backend()) {
				times++
				c.Failed(errRefused, 0)
				continue
			}
			c.Answered()
			c.Done(nil)
		}
		return times
	}
	for range 6 {
		if got := asked(); got != 3 {
			t.Fatalf("%d were asked of those that fail, want 3", got)
		}
	}
	if len(*events) != 3 {
		t.Fatalf("%+v", *events)
	}
	due, _ := b.Health().Trials(0, 9)
	if got := asked(); got != 0 || len(due) != 0 {
		t.Errorf("%d were asked after Trials, and %v are due", got, due)
	}
	due, _ = b.Health().Trials(second, 9)
	for _, trial := range due {
		trial.Passed(second)
	}
	b.Health().Trials(second, 9)
	if got := asked(); got != 3 || len(due) != 3 {
		t.Errorf("%d of those that have returned were asked, after %d trials", got, len(due))
	}
}

// outlierModel is the rules once more, slow and plain.
type outlierModel struct {
	failures, since map[netip.AddrPort]int
	answered, runs  int
	ejected         map[netip.AddrPort]bool
	backends        []netip.AddrPort
	believed        map[netip.AddrPort][]belief
}

// belief is in a client that could have brought about the failure that it had.
type belief struct {
	client netip.Addr
	at     int64
}

// believes reports whether a failure of a client counts: once in an interval, for each of the last four.
func (m *outlierModel) believes(a netip.AddrPort, client netip.Addr, now int64) bool {
	for i, known := range m.believed[a] {
		if known.client == client {
			if now-known.at < 10*second {
				return false
			}
			m.believed[a][i].at = now
			return true
		}
	}
	m.believed[a] = append(m.believed[a], belief{client, now})
	if len(m.believed[a]) > 4 {
		m.believed[a] = m.believed[a][1:]
	}
	return true
}

// fails has a backend fail, by a client that could have brought it about unless that is the zero Addr.
func (m *outlierModel) fails(a netip.AddrPort, client netip.Addr, now int64) {
	if m.failures[a] == 0 {
		m.runs++
		m.since[a] = m.runs
		m.believed[a] = nil
	}
	if client.IsValid() && !m.believes(a, client, now) {
		return
	}
	m.failures[a]++
	if m.failures[a] < 5 || !slices.Contains(m.ring(), a) || m.ejected[a] {
		return
	}
	m.failures[a] = 0
	if n := len(m.ejected) + 1; m.answered >= m.since[a] && 2*n <= len(m.backends) && n < len(m.backends) {
		m.ejected[a] = true
	}
}

// ring returns who takes connections.
func (m *outlierModel) ring() []netip.AddrPort {
	rest := slices.DeleteFunc(slices.Clone(m.backends), func(a netip.AddrPort) bool { return m.ejected[a] })
	if 2*len(rest) < len(m.backends) || len(rest) == 0 {
		return m.backends
	}
	return rest
}

// TestOutlierModel: for thousands of random histories the model agrees.
func TestOutlierModel(t *testing.T) {
	testbed.Sequential(t)
	histories := 10000
	if testing.Short() {
		histories = 500
	}
	for seed := range uint64(histories) {
		r := rand.New(rand.NewPCG(seed, 19))
		now, n := int64(0), 1+r.IntN(8)
		b, _ := ejecting(t, echo(numbers(n)...))
		m := &outlierModel{failures: map[netip.AddrPort]int{}, since: map[netip.AddrPort]int{},
			ejected:  map[netip.AddrPort]bool{},
			believed: map[netip.AddrPort][]belief{}}
		set := func(n int) {
			all := numbers(n)
			m.backends = nil
			for _, i := range all {
				m.backends = append(m.backends, address(i))
			}
			for a := range m.since {
				if !slices.Contains(m.backends, a) {
					delete(m.failures, a)
					delete(m.ejected, a)
				}
			}
			b.Update(mustTable(t, []lb.Service{echo(all...)}))
		}
		set(n)
		bad := r.IntN(n + 1) // those below mostly fail
		for step := range 120 {
			switch op := r.IntN(20); {
			case op == 0:
				set(1 + r.IntN(8))
			case op == 1:
				now += r.Int64N(3 * second)
				due, _ := b.Health().Trials(now, 1+r.IntN(3))
				for _, trial := range due {
					if r.IntN(2) == 0 {
						trial.Failed(now)
						continue
					}
					trial.Passed(now)
					delete(m.ejected, trial.Backend())
					m.failures[trial.Backend()] = 0
				}
			default:
				c := mustPick(t, b, Flow{Now: now})
				a := c.Backend()
				fails := a.Addr().As4()[3] < byte(bad)
				if fails = fails != (r.IntN(10) == 0); fails && r.IntN(3) > 0 {
					from := netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(6))})
					c.NotAnswered(errRefused, from, now)
					c.Done(nil)
					m.fails(a, from, now)
				} else if fails {
					c.Failed(errRefused, now)
					m.fails(a, netip.Addr{}, now)
				} else {
					c.Answered()
					c.Done(nil)
					m.failures[a], m.answered = 0, m.runs
				}
			}
			m.compare(t, b, fmt.Sprintf("history %d, step %d", seed, step))
		}
	}
}

// compare makes a round of requests, which go to each of the ring once, and have no outcome.
func (m *outlierModel) compare(t *testing.T, b *Balancer, when string) {
	t.Helper()
	var got []netip.AddrPort
	for range m.ring() {
		c := mustPick(t, b, Flow{})
		got = append(got, c.Backend())
		c.Done(nil)
	}
	slices.SortFunc(got, netip.AddrPort.Compare)
	if !slices.Equal(got, m.ring()) || b.Health().Stats().Active != int64(len(m.ejected)) {
		t.Fatalf("%s: a round goes to %v, want %v; %+v, want %d ejected", when, got, m.ring(), b.Health().Stats(), len(m.ejected))
	}
}
