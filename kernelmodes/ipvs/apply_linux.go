package ipvs

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/lb"
)

// change is what has become of backends that datagrams may still be sent to.
type change struct {
	key  key
	gone netip.AddrPort // invalid: the virtual server is new
}

// serve makes those of some virtual servers that are wanted, and gives them the backends
// that are wanted. have is changed as the kernel is. Those that are new and apart get their
// first backend within begin.
//
// The first Sync may have to make 100,000 backends. So what is new is made in batches, and
// what the kernel refused there, or what needs more care, is done after that.
func (t table) serve(some map[key]struct{}, want map[key]server, have map[key]*held, apart func(key) bool, begin func(key, func() error) error) ([]change, error) {
	var fresh []key
	b := t.newBatch()
	for k := range some {
		s, wanted := want[k]
		if !wanted || have[k] != nil {
			continue
		}
		fresh = append(fresh, k)
		if apart(k) {
			continue
		}
		h := newHeld(s)
		b.service(k, s, func() { have[k] = h })
		b.backends(k, s.backends[:min(1, len(s.backends))], h)
	}
	b.flush()
	var errs []error
	for k := range some {
		s, wanted := want[k]
		if h := have[k]; wanted && (h == nil || !h.same(s)) {
			errs = append(errs, t.build(k, s, have, apart, begin))
		}
		if h := have[k]; wanted && h != nil && h.same(s) {
			h.udp = s.udp // which the kernel does not know of marks
			b.backends(k, s.backends, h)
		}
	}
	errs = append(errs, b.close())
	for k := range some {
		if s, wanted := want[k]; wanted && have[k] != nil && have[k].same(s) {
			errs = append(errs, t.equip(k, s.backends, have[k]))
		}
	}
	var changes []change
	for _, k := range fresh {
		if have[k] != nil {
			changes = append(changes, change{key: k})
		}
	}
	return changes, errors.Join(errs...)
}

func newHeld(s server) *held {
	h := &held{server: s, weights: make(map[netip.AddrPort]int, len(s.backends))}
	h.backends = nil
	return h
}

// build makes or changes a virtual server.
func (t table) build(k key, s server, have map[key]*held, apart func(key) bool, begin func(key, func() error) error) error {
	start := func() error { return t.start(k, s, have) }
	switch h := have[k]; {
	case h == nil && apart(k):
		return begin(k, start)
	case h == nil:
		return start()
	default:
		err := t.put(k, s, h)
		if err == nil {
			h.scheduler, h.flags, h.timeout = s.scheduler, s.flags, s.timeout
		}
		return err
	}
}

// start makes a virtual server with one backend: the kernel cannot make both at once, and
// refuses those who ask in between.
func (t table) start(k key, s server, have map[key]*held) error {
	if err := t.put(k, s, nil); err != nil {
		return err
	}
	have[k] = newHeld(s)
	return t.equip(k, s.backends[:min(1, len(s.backends))], have[k])
}

// equip gives a virtual server backends.
func (t table) equip(k key, backends []netip.AddrPort, h *held) error {
	var errs []error
	for _, a := range backends {
		weight, isThere := h.weights[a]
		if weight == 1 {
			continue
		}
		if err := t.weigh(k, a, 1, isThere); err != nil {
			errs = append(errs, err)
			continue
		}
		h.weights[a] = 1
	}
	return errors.Join(errs...)
}

// retire has some virtual servers that are not wanted end, and backends of some that are
// not wanted there: at once where they have no connections, and otherwise as soon as they
// have none, which a later call sees. have is changed as the kernel is. Virtual servers for
// which keep is true stay, and get no more connections.
func (t table) retire(some map[key]struct{}, want map[key]server, have map[key]*held, keep func(key) bool) ([]change, error) {
	var changes []change
	var errs []error
	for k := range some {
		h := have[k]
		if h == nil {
			continue
		}
		s, wanted := want[k]
		var gone []netip.AddrPort
		for a := range h.weights {
			_, found := slices.BinarySearchFunc(s.backends, a, netip.AddrPort.Compare)
			if !found && (wanted || a != k.addr) {
				gone = append(gone, a)
			}
		}
		if h.udp && !wanted && !keep(k) {
			// At once: without its backends it would refuse.
			if err := t.remove(k); err != nil {
				errs = append(errs, err)
				continue
			}
			delete(have, k)
			for _, a := range gone {
				changes = append(changes, change{k, a})
			}
			continue
		}
		leaves := !wanted && !keep(k)
		if len(gone) > 0 {
			if leaves {
				// First of all: with no backend that takes new connections it would refuse.
				if err := t.stepAside(k, h); err != nil {
					errs = append(errs, err)
					continue
				}
			}
			removed, err := t.quiesce(k, h, gone)
			errs = append(errs, err)
			for _, a := range removed {
				changes = append(changes, change{k, a})
			}
		}
		_, aside := h.weights[k.addr]
		if leaves && (len(h.weights) == 0 || len(h.weights) == 1 && aside) {
			err := t.remove(k)
			if err == nil {
				delete(have, k)
			}
			errs = append(errs, err)
		}
	}
	return changes, errors.Join(errs...)
}

// stepAside has new connections to a virtual server that drains come to this node
// itself, as without it: its address as its own backend is what the kernel lets pass
// untouched (LOCALNODE). Else they would be refused while somebody else on this node,
// at a node port, would take them.
func (t table) stepAside(k key, h *held) error {
	if k.mark != 0 || h.weights[k.addr] == 1 {
		return nil
	}
	_, isThere := h.weights[k.addr]
	err := t.weigh(k, k.addr, 1, isThere)
	if err == nil {
		h.weights[k.addr] = 1
	}
	return err
}

// quiesce removes those of some backends of a virtual server that have no connections,
// and returns them. The others get weight 0. UDP has no end of a connection to wait
// for: all are removed.
func (t table) quiesce(k key, h *held, gone []netip.AddrPort) (removed []netip.AddrPort, err error) {
	var errs []error
	if !h.udp {
		// First no new ones, then see whether there are any.
		for _, a := range gone {
			if h.weights[a] != 0 {
				if err := t.weigh(k, a, 0, true); err != nil {
					errs = append(errs, err)
					continue
				}
				h.weights[a] = 0
			}
		}
	}
	now := map[netip.AddrPort]real{}
	if !h.udp {
		if now, err = t.backends(k); err != nil {
			return nil, errors.Join(append(errs, err)...)
		}
	}
	for _, a := range gone {
		if now[a].busy {
			continue
		}
		if err := t.leave(k, a); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(h.weights, a)
		removed = append(removed, a)
	}
	return removed, errors.Join(errs...)
}

// ourKeys returns the virtual servers that sets name.
func ourKeys(s map[string][]netfilterMember) map[key]bool {
	out := make(map[key]bool, len(s[setServers])+len(s[setNumbers]))
	for _, m := range s[setServers] {
		if p := slices.Index(ipProtocols[:], m.Protocol); p > 0 {
			out[key{protocol: lb.Protocol(p), addr: netip.AddrPortFrom(m.Addr, m.Port)}] = true
		}
	}
	for _, m := range s[setNumbers] {
		out[key{mark: uint32(m.Port) << numberShift}] = true
	}
	return out
}
