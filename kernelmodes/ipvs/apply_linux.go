package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// write brings the kernel from what is known of it to what is requested, where that may
// differ. What serves comes before what leads to it; what is not requested goes in the
// reverse order.
func (e *Engine) write(ctx context.Context, t *table) error {
	if len(e.want.pending) > 0 {
		if err := t.connect(); err != nil {
			return err
		}
	}
	err := e.want.rules.Write(ctx, func() error { return e.writeServers(t) })
	if err == nil {
		e.want.commit()
		if err = e.flows.delete(e.IPv6); err != nil {
			e.want.rules.Forget()
		}
	}
	return err
}

// writeServers writes virtual servers and addresses, and which marks lead to them.
func (e *Engine) writeServers(t *table) error {
	w, marks := e.want, e.shape().set(setNear)
	e.flows.leads = w.near()
	if err := e.serve(t); err != nil {
		return err
	}
	if err := w.rules.Grow(marks); err != nil {
		return err
	}
	if err := e.addAddresses(); err != nil {
		return err
	}
	// Clients of virtual servers of UDP that are about to go begin anew with what serves
	// them now: without a virtual server their entries would lead nowhere.
	for x := range w.pending {
		if _, requested := w.servers[x]; !requested && w.have[x] != nil && w.have[x].udp {
			e.flows.note(x)
		}
	}
	if err := e.flows.delete(e.IPv6); err != nil {
		return err
	}
	// Marks lead to virtual servers that refuse without backends.
	if err := w.rules.Shrink(marks); err != nil {
		return err
	}
	if err := e.retire(t); err != nil {
		return err
	}
	return e.deleteAddresses()
}

// serve makes and changes virtual servers, and gives them their backends.
func (e *Engine) serve(t *table) error {
	w := e.want
	hosted, others := w.fresh()
	var errs []error
	for _, group := range hosted {
		errs = append(errs, e.takeOver(t, group))
	}
	errs = append(errs, e.start(t, others))
	for x := range w.pending {
		s, requested := w.servers[x]
		h := w.have[x]
		if !requested || h == nil {
			continue
		}
		if !h.same(s) {
			t.put(x, s, true, func() { h.scheduler, h.flags, h.timeout = s.scheduler, s.flags, s.timeout })
		}
		h.udp = s.udp // which the kernel does not know of marks
		for _, b := range s.backends {
			t.weigh(x, h, b.addr, b.weight)
		}
	}
	return errors.Join(append(errs, t.flush())...)
}

// start makes virtual servers that are not there, each with its first backend: while it has
// none the kernel refuses clients.
func (e *Engine) start(t *table, fresh []key) error {
	for _, x := range fresh {
		s := e.want.servers[x]
		h := &held{server: s, weights: make(map[netip.AddrPort]int, len(s.backends))}
		h.backends = nil
		t.put(x, s, false, func() {
			e.want.made(x, h)
			e.flows.note(x)
		})
		if len(s.backends) > 0 {
			t.weigh(x, h, s.backends[0].addr, s.backends[0].weight)
		}
	}
	return t.flush()
}

// takeOver makes virtual servers where a program of this node may have served until now.
// No new flow begins meanwhile, and the flows of UDP that sockets of this node have are deleted
// before: of those ipvs would get datagrams that it cannot masquerade any more, and the answers
// would leave by other ports.
func (e *Engine) takeOver(t *table, servers []key) (err error) {
	var block []netfilter.Member // where first packets of flows are dropped meanwhile
	for _, x := range servers {
		if m := x.member(); !e.want.set(setDrop).Present(m) {
			block = append(block, m)
		}
		if x.Protocol == lb.UDP {
			e.flows.add(x.Addr)
		}
	}
	set := e.shape().set(setDrop)
	defer func() {
		sent, err2 := set.Delete(block)
		e.writes += sent
		err = errors.Join(err, err2)
	}()
	sent, err := set.Add(block)
	e.writes += sent
	if err == nil && servers[0].Protocol == lb.UDP {
		err = e.flows.delete(e.IPv6)
	}
	if err == nil {
		err = e.start(t, servers)
	}
	return err
}

// retire removes virtual servers, and backends of them, that are not requested: at once where
// they have no connections, or are to lose them, and otherwise as soon as they have none, which a
// later call sees. UDP has no end of a connection to wait for. What is left of connections to a
// backend that is removed ends with its next packet (net.ipv4.vs.expire_nodest_conn).
func (e *Engine) retire(t *table) error {
	w := e.want
	remove := func(x key, h *held) {
		t.remove(x, func() {
			w.gone(x, h)
			e.flows.note(x)
		})
	}
	var drain []key
	for x := range w.pending {
		h := w.have[x]
		if h == nil {
			continue
		}
		surplus := w.surplus(x, h)
		switch {
		case h.udp && w.leaves(x):
			remove(x, h) // at once: without its backends it would refuse
		case h.udp:
			for _, a := range surplus {
				t.removeBackend(x, h, a)
			}
		default:
			drain = append(drain, x)
			if len(surplus) > 0 && w.leaves(x) && x.mark == 0 {
				// First of all new connections go to this node itself, as without the virtual
				// server: its address as its own backend is what the kernel lets pass untouched
				// (LOCALNODE). Else they would be refused while a socket on this node, at a
				// node port, would take them.
				t.weigh(x, h, x.Addr, 1)
			}
			for _, a := range surplus {
				t.weigh(x, h, a, 0)
			}
		}
	}
	errs := []error{t.flush()}
	for _, x := range drain {
		h := w.have[x]
		surplus := w.surplus(x, h)
		if len(surplus) == 0 {
			continue
		}
		now, err := t.backends(x) // they get no more connections, so that none is missed
		errs = append(errs, err)
		for _, a := range surplus {
			if err == nil && (!now[a].busy || w.servers[x].ended[a]) {
				t.removeBackend(x, h, a)
			}
		}
	}
	errs = append(errs, t.flush())
	for _, x := range drain {
		h := w.have[x]
		_, aside := h.weights[x.Addr]
		if w.leaves(x) && (len(h.weights) == 0 || len(h.weights) == 1 && aside) {
			remove(x, h)
		}
	}
	return errors.Join(append(errs, t.flush())...)
}

// addAddresses makes the addresses this node's that are not. The node sends from the first of
// its own.
func (e *Engine) addAddresses() error {
	w := e.want
	missing := w.addresses.Missing()
	if len(missing) == 0 {
		return nil
	}
	local, err := netfilter.LocalAddrs()
	if err != nil {
		return err
	}
	var source netip.Addr
	if i := slices.IndexFunc(w.node, func(a netip.Addr) bool { return local[a] }); i >= 0 {
		source = w.node[i]
	}
	for _, ip := range missing {
		e.writes++
		if err := netlink.RouteReplace(route(ip, source)); err != nil {
			return fmt.Errorf("add route of address %s: %w", ip, err)
		}
		w.addresses.SetPresent(ip, true)
	}
	return nil
}

// deleteAddresses undoes that for those that are not to be this node's.
func (e *Engine) deleteAddresses() error {
	for _, ip := range e.want.addresses.Surplus() {
		e.writes++
		if err := deleteRoute(ip); err != nil {
			return err
		}
		e.want.addresses.SetPresent(ip, false)
	}
	return nil
}
