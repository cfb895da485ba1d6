package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

func at(name string, ip byte, path string, backends ...byte) *lb.Service {
	return requesting(service(lb.TCP, name, ip, backends...), path)
}

// action returns what rules do with an address.
func (b *beside) action(ip byte) redirect.Action {
	return b.k.entries[lb.Frontend{Protocol: lb.TCP, Addr: service(lb.TCP, "", ip).Addresses[0].Addr}].Action
}

// TestSlowEngineAddressPasses: an address that passes from one Service to another is served all the time, whichever of
// them waits for an engine.
func TestSlowEngineAddressPasses(t *testing.T) {
	slowly(t, func(b *beside) {
		b.submit(at("was", 2, "iptables", 1))
		b.written(1)
		b.submit(at("was", 2, "iptables", 1), at("big", 3, "iptables", 1)) // the engine writes
		b.submit(at("is", 2, "userspace", 1), at("big", 3, "iptables", 1))
		if s := b.Status(); s.Failures != 0 || b.action(2) != redirect.Redirect {
			b.Errorf("to user space: %v, %+v", b.action(2), s)
		}
		b.written(2)
		b.want("to user space", map[string]Path{"is": Userspace, "big": IPTables}, map[string]int{"was": -1, "big": 1})

		b.submit(at("then", 2, "iptables", 1), at("big", 3, "iptables", 1))
		if b.action(2) != redirect.Redirect {
			b.Errorf("to the kernel: it is not served until the kernel does: %v", b.action(2))
		}
		b.written(2)
		b.want("to the kernel", map[string]Path{"then": IPTables}, map[string]int{"then": 1})
		if s := b.Status(); s.Failures != 0 || b.action(2) == redirect.Redirect {
			b.Errorf("to the kernel: %v, %+v", b.action(2), s)
		}
	})
}

// TestSlowEnginePortPasses: so is a node port, whose socket is not closed for the Service before.
func TestSlowEnginePortPasses(t *testing.T) {
	slowly(t, func(b *beside) {
		with := func(s *lb.Service) *lb.Service { s.Addresses = append(s.Addresses, nodePort(30000)); return s }
		b.submit(with(at("was", 2, "iptables", 1)))
		b.written(1)
		b.submit(with(at("was", 2, "iptables", 1)), at("big", 3, "iptables", 1))
		b.submit(with(at("is", 4, "userspace", 1)), at("big", 3, "iptables", 1))
		b.written(2)
		if f := with(at("", 2, "")).Addresses[1].Addr; !b.k.listens(f) {
			b.Error("the socket of a node port that has passed on is closed")
		}
	})
}

// TestSlowEngineForgets: what is deleted, or on another path again, before it was written for the first time does not
// stay in the kernel.
func TestSlowEngineForgets(t *testing.T) {
	slowly(t, func(b *beside) {
		b.submit(at("back", 4, "userspace", 1))
		b.submit(at("gone", 2, "iptables", 1), at("back", 4, "iptables", 1))
		b.submit(at("back", 4, "userspace", 1))
		b.written(3)
		b.want("both", map[string]Path{"back": Userspace, "gone": None}, map[string]int{"back": -1, "gone": -1})
		if len(b.planner.dirty) != 0 {
			b.Errorf("%d rows are looked at with each change", len(b.planner.dirty))
		}
	})
}

// TestSlowEngineAlways: an engine that writes without a pause keeps no Service from its path for ever, no drain from
// being answered, and no change waiting afterwards.
func TestSlowEngineAlways(t *testing.T) {
	slowlyEvery(t, time.Second, func(b *beside) {
		n := byte(0)
		pass := func(times int, others ...*lb.Service) {
			for range times {
				n++
				b.submit(append(others, at("big", 3, "iptables", 1+n%2))...)
			}
		}
		pass(15, at("comes", 2, "iptables", 1), at("goes", 4, "iptables", 1))
		pass(30, at("comes", 2, "iptables", 1), at("goes", 4, "iptables", 1))
		b.want("they come", map[string]Path{"comes": IPTables, "goes": IPTables}, nil)
		pass(45, at("comes", 2, "userspace", 1))
		b.want("one moves, one goes", map[string]Path{"comes": Userspace, "goes": None},
			map[string]int{"comes": -1, "goes": -1})
		answered := make(chan error, 1)
		go func() {
			drain := lb.Drain{Addr: at("", 0, "", 1).Backends[0].Addr}
			answered <- b.Drain(context.Background(), drain, false, true)
		}()
		pass(35, at("comes", 2, "userspace", 1))
		select {
		case err := <-answered:
			if err != nil {
				b.Error(err)
			}
		default:
			b.Error("the drain is not answered")
		}
		if ahead := time.Until(b.pace.next); ahead > 3*time.Second {
			b.Errorf("the next change waits for %v", ahead)
		}
	})
}

// TestSlowEngineFailsAgain: an engine that always fails after a while makes the process unhealthy.
func TestSlowEngineFailsAgain(t *testing.T) {
	slowly(t, func(b *beside) {
		b.engine.fails = errors.New("no memory")
		b.submit(at("big", 2, "iptables", 1))
		unhealthy := false
		for range 30 {
			b.written(1)
			unhealthy = unhealthy || !b.Status().Healthy(time.Now())
		}
		if !unhealthy {
			b.Errorf("it is healthy: %+v", b.Status())
		}
	})
}

// TestSlowEngineAtTheEnd: that the process ends while an engine writes is no failure of the engine.
func TestSlowEngineAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, k := newAgent(t)
		a.Log = zap.NewNop()
		b := &beside{T: t, Agent: a, k: k, engine: &slow{inKernel: inKernel{k: k, intact: true}, takes: writing}}
		a.Families[0].Engines[IPTables] = b.engine
		mustApply(t, a, at("big", 2, "iptables", 1))
		stop := running(t, a)
		b.submit(at("big", 2, "iptables", 1, 2))
		stop()
		if left, err := a.Offload(t.Context(), [2]bool{true}); left != 0 || err != nil {
			t.Errorf("%d are left in user space: %v", left, err)
		}
		b.want("offloaded", map[string]Path{"big": IPTables}, map[string]int{"big": 2})
	})
}
