package ipvs

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// change is a backend that datagrams may still be sent to, or a virtual server.
type change struct {
	key  key
	gone netip.AddrPort // invalid: the virtual server is new
}

// start makes virtual servers that are not there, each with its first backend: while it has
// none the kernel refuses clients. have is changed as the kernel is. What the kernel refuses
// in a batch, such as a virtual server of another program, is done once more alone.
func (t table) start(fresh []key, want map[key]server, have map[key]*held) error {
	b := t.newBatch()
	for _, k := range fresh {
		s := want[k]
		h := newHeld(s)
		b.service(k, s, func() { have[k] = h })
		b.backends(k, s.backends[:min(1, len(s.backends))], h)
	}
	errs := []error{b.close()}
	for _, k := range fresh {
		s := want[k]
		if have[k] == nil {
			if err := t.put(k, s, nil); err != nil {
				errs = append(errs, err)
				continue
			}
			have[k] = newHeld(s)
		}
		errs = append(errs, t.addBackends(k, s.backends[:min(1, len(s.backends))], have[k]))
	}
	return errors.Join(errs...)
}

// adjust gives those of some virtual servers that are requested and there the scheduler and
// the backends that are requested. have is changed as the kernel is. The first Sync may have to make
// 100,000 backends, so that new ones are made in batches first.
func (t table) adjust(some map[key]struct{}, want map[key]server, have map[key]*held) error {
	var errs []error
	b := t.newBatch()
	for k := range some {
		s, requested := want[k]
		h := have[k]
		if !requested || h == nil {
			continue
		}
		if !h.same(s) {
			if err := t.put(k, s, h); err != nil {
				errs = append(errs, err)
				continue
			}
			h.scheduler, h.flags, h.timeout = s.scheduler, s.flags, s.timeout
		}
		h.udp = s.udp // which the kernel does not know of marks
		b.backends(k, s.backends, h)
	}
	errs = append(errs, b.close())
	for k := range some {
		if s, requested := want[k]; requested && have[k] != nil && have[k].same(s) {
			errs = append(errs, t.addBackends(k, s.backends, have[k]))
		}
	}
	return errors.Join(errs...)
}

func newHeld(s server) *held {
	h := &held{server: s, weights: make(map[netip.AddrPort]int, len(s.backends))}
	h.backends = nil
	return h
}

// addBackends gives a virtual server backends.
func (t table) addBackends(k key, backends []netip.AddrPort, h *held) error {
	var errs []error
	for _, a := range backends {
		weight, isThere := h.weights[a]
		if weight == 1 {
			continue
		}
		if err := t.setWeight(k, a, 1, isThere); err != nil {
			errs = append(errs, err)
			continue
		}
		h.weights[a] = 1
	}
	return errors.Join(errs...)
}

// retire removes those of some virtual servers, and of their backends, that are not requested:
// at once where they have no connections, and otherwise as soon as they have none, which a
// later call sees. have is changed as the kernel is. Virtual servers for which keep is true
// stay, and get no more connections.
func (t table) retire(
	some map[key]struct{}, want map[key]server, have map[key]*held, keep func(key) bool,
) (changes []change, err error) {
	var errs []error
	for k := range some {
		h := have[k]
		if h == nil {
			continue
		}
		s, requested := want[k]
		var gone []netip.AddrPort
		for a := range h.weights {
			_, found := slices.BinarySearchFunc(s.backends, a, netip.AddrPort.Compare)
			if !found && (requested || a != k.addr) {
				gone = append(gone, a)
			}
		}
		if h.udp && !requested && !keep(k) {
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
		leaves := !requested && !keep(k)
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

// stepAside sends new connections to a virtual server that drains to this node itself, as
// without it: its address as its own backend is what the kernel lets pass untouched
// (LOCALNODE). Else they would be refused while a socket on this node, at a node port, would
// take them.
func (t table) stepAside(k key, h *held) error {
	if k.mark != 0 || h.weights[k.addr] == 1 {
		return nil
	}
	_, isThere := h.weights[k.addr]
	err := t.setWeight(k, k.addr, 1, isThere)
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
				if err := t.setWeight(k, a, 0, true); err != nil {
					errs = append(errs, err)
					continue
				}
				h.weights[a] = 0
			}
		}
	}
	now := map[netip.AddrPort]realServer{}
	if !h.udp {
		if now, err = t.backends(k); err != nil {
			return nil, errors.Join(append(errs, err)...)
		}
	}
	for _, a := range gone {
		if now[a].busy {
			continue
		}
		if err := t.removeBackend(k, a); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(h.weights, a)
		removed = append(removed, a)
	}
	return removed, errors.Join(errs...)
}

// ourKeys returns the virtual servers that the members of SERVERS and NUMBERS name.
func ourKeys(servers, numbers []netfilter.Member) map[key]bool {
	out := make(map[key]bool, len(servers)+len(numbers))
	for _, m := range servers {
		if p := slices.Index(ipProtocols[:], m.Protocol); p > 0 {
			out[key{protocol: lb.Protocol(p), addr: netip.AddrPortFrom(m.Addr, m.Port)}] = true
		}
	}
	for _, m := range numbers {
		out[key{mark: uint32(m.Port) << numberShift}] = true
	}
	return out
}
