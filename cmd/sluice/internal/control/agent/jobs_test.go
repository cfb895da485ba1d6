package agent

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/lb"
)

// slow stands in for an engine that takes long to write.
type slow struct {
	inKernel
	takes time.Duration
	fails error

	mu   sync.Mutex
	made map[lb.ID]*lb.Service
	runs int
}

func (e *slow) Sync(ctx context.Context, d lb.Delta, _ lb.Node) error {
	e.mu.Lock()
	if e.runs++; e.runs > 1 {
		panic("two Syncs of one engine run at the same time")
	}
	next := maps.Clone(e.made)
	e.mu.Unlock()
	if next == nil || d.Whole {
		next = make(map[lb.ID]*lb.Service)
	}
	for _, s := range d.Removed {
		delete(next, s.ID)
	}
	for _, s := range d.Added {
		next[s.ID] = s
	}
	for _, c := range d.Changed {
		next[c.New.ID] = c.New
	}
	select {
	case <-time.After(e.takes):
	case <-ctx.Done():
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.runs--; e.fails != nil {
		return e.fails
	}
	e.made = next
	return ctx.Err()
}

// backends returns the endpoints that the engine has for a Service by name; -1: it has none of it.
func (e *slow) backends(name string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, s := range e.made {
		if id.Name == name {
			return len(s.Backends)
		}
	}
	return -1
}

// beside is a node with one path that takes ten seconds to write, and with Run.
type beside struct {
	*testing.T
	*Agent
	k      *kernel
	engine *slow
}

func (b *beside) submit(services ...*lb.Service) {
	b.Submit(Desired{Services: lists.Of(services), Changes: Changes{Services: 1}})
	time.Sleep(time.Second) // of synctest: more than the agent's patience
	synctest.Wait()
}

// want checks what there is after a step: on which path Services are, and how many endpoints the engine has of them.
func (b *beside) want(step string, paths map[string]Path, has map[string]int) {
	b.Helper()
	for name, path := range paths {
		if c, _ := b.Choice(service(lb.TCP, name, 1).ID); c.Path != path {
			b.Errorf("%s: %s is on path %s, want %s", step, name, c.Path, path)
		}
	}
	for name, n := range has {
		if got := b.engine.backends(name); got != n {
			b.Errorf("%s: the engine has %d endpoints of %s, want %d", step, got, name, n)
		}
	}
}

// slowly runs a test on such a node, in the time of synctest.
func slowly(t *testing.T, do func(b *beside)) { slowlyEvery(t, 0, do) }

// slowlyEvery is slowly with Config.WriteEvery.
func slowlyEvery(t *testing.T, every time.Duration, do func(b *beside)) {
	synctest.Test(t, func(t *testing.T) {
		a, k := newAgent(t)
		a.Log, a.WriteEvery = zap.NewNop(), every
		b := &beside{T: t, Agent: a, k: k, engine: &slow{inKernel: inKernel{k: k, intact: true}, takes: writing}}
		a.Families[0].Engines[IPTables] = b.engine
		k.intact = true
		mustApply(t, a, service(lb.TCP, "mine", 1, 1))
		stop := running(t, a)
		do(b)
		stop()
	})
}

// written lets so many writings of the engine pass.
func (b *beside) written(n int) {
	b.Status()                             // what the test has read was before what follows
	time.Sleep(time.Duration(n) * writing) // of synctest
	synctest.Wait()
}

const writing = 10 * time.Second

// TestSlowEngine: a path that takes long to write delays the Services that it concerns, and no others.
func TestSlowEngine(t *testing.T) {
	slowly(t, func(b *beside) {
		mine := func(backends ...byte) *lb.Service { return service(lb.TCP, "mine", 1, backends...) }
		big := func(path string, backends ...byte) *lb.Service {
			return requesting(service(lb.TCP, "big", 2, backends...), path)
		}
		other := service(lb.TCP, "new", 3, 1)

		b.submit(mine(1), big("iptables", 1))
		b.want("it comes", map[string]Path{"mine": Userspace, "big": None}, map[string]int{"big": -1})
		b.submit(mine(1, 2), big("iptables", 1), other)
		b.want("others change meanwhile", map[string]Path{"new": Userspace}, map[string]int{"big": -1})
		if s := b.Status(); s.ServicesPending == 0 || s.QueuedSince.IsZero() {
			b.Errorf("nothing waits: %+v", s)
		}
		if s, _, _ := b.LB.Table().Lookup(lb.Frontend{Protocol: lb.TCP, Addr: mine().Addresses[0].Addr}); len(s.Backends) != 2 {
			b.Error("new endpoints of another Service wait")
		}
		b.submit(mine(1), big("iptables", 1, 2), other) // for the next writing
		b.written(1)
		b.want("it is there", map[string]Path{"big": IPTables}, map[string]int{"big": 1})
		b.written(1)
		b.want("so are its endpoints", nil, map[string]int{"big": 2})
		if s := b.Status(); s.ServicesPending != 0 || !s.QueuedSince.IsZero() || s.Failures != 0 {
			b.Errorf("something waits still: %+v", s)
		}

		b.submit(mine(1), big("userspace", 1, 2), other)
		b.want("it moves to user space, which is there", map[string]Path{"big": Userspace}, nil)
		b.submit(mine(1), big("iptables", 1, 2), other)
		b.want("and back, which waits until it has left", map[string]Path{"big": Userspace}, nil)
		b.written(2)
		b.want("it is back", map[string]Path{"big": IPTables}, map[string]int{"big": 2})

		b.submit(mine(1), other)
		b.submit(mine(1), other, big("userspace", 3))
		b.written(2)
		b.want("it went and came meanwhile", map[string]Path{"big": Userspace}, map[string]int{"big": -1})
	})
}

// TestSlowEngineFails: the Services of a path that fails after a while go to user space.
func TestSlowEngineFails(t *testing.T) {
	slowly(t, func(b *beside) {
		b.engine.fails = errors.New("no memory")
		big := requesting(service(lb.TCP, "big", 2, 1), "iptables")
		b.submit(big)
		b.want("it may still come", map[string]Path{"big": None}, nil)
		b.written(1)
		b.want("it has failed", map[string]Path{"big": Userspace}, nil)
		if s := b.Status(); s.Failures == 0 || s.LastError == nil {
			b.Errorf("nothing is said: %+v", s)
		}
		b.engine.mu.Lock()
		b.engine.fails = nil
		b.engine.mu.Unlock()
		b.written(10)
		b.want("it works", map[string]Path{"big": IPTables}, map[string]int{"big": 1})
	})
}

// TestSlowEngineLeaves: flows of UDP that begin while the kernel still has a Service leave it, too. A hand-over waits
// until nothing is written.
func TestSlowEngineLeaves(t *testing.T) {
	slowly(t, func(b *beside) {
		dns := service(lb.UDP, "dns", 2, 1)
		b.submit(requesting(dns, "iptables"))
		b.written(1)
		b.k.stale.take()
		b.submit()
		const gone = "0 10.96.0.2:53"
		if got := b.k.stale.take(); got != gone {
			b.Errorf("when it is requested: %q, want %q", got, gone)
		}
		begin := time.Now()
		resume, err := b.Pause(b.Context())
		if err != nil || time.Since(begin) < writing/2 {
			b.Errorf("a hand-over begins while rules are written: %v", err)
		}
		resume()
		time.Sleep(time.Second) // of synctest
		synctest.Wait()
		if got := b.k.stale.take(); got != gone {
			b.Errorf("when it is done: %q, want %q", got, gone)
		}
	})
}

// TestSlowEngineAddresses: what is steered to user space stays in its table until the path that follows is there.
func TestSlowEngineAddresses(t *testing.T) {
	slowly(t, func(b *beside) {
		was := service(lb.TCP, "big", 2, 1)
		b.submit(was)
		now := requesting(service(lb.TCP, "big", 3, 1), "iptables")
		served := func(s *lb.Service) bool {
			_, _, ok := b.LB.Table().Lookup(lb.Frontend{Protocol: lb.TCP, Addr: s.Addresses[0].Addr})
			return ok
		}
		b.submit(now)
		b.submit(now, service(lb.TCP, "mine", 1, 1, 2))
		if !served(was) || !served(now) {
			b.Errorf("the address before is served: %t, the new one: %t", served(was), served(now))
		}
		b.written(1)
		if served(was) || !slices.Equal(addressesOf(b.k), []netip.AddrPort{now.Addresses[0].Addr, service(lb.TCP, "", 1).Addresses[0].Addr}) {
			b.Errorf("the address before is served: %t; %v", served(was), addressesOf(b.k))
		}
	})
}

// addressesOf returns what rules name.
func addressesOf(k *kernel) (out []netip.AddrPort) {
	for f := range k.entries {
		out = append(out, f.Addr)
	}
	slices.SortFunc(out, func(a, b netip.AddrPort) int { return b.Compare(a) })
	return out
}
