package lb

import "net/netip"

// Active checks: they are made elsewhere ([Policies.ReadinessProbe]), and this says what becomes of them.

// Checked says that a backend passes its active checks, or why it fails them: then it gets no new connections, as if it
// was ejected, and a Service of which too few would stay uses all (Outlier.PanicThreshold). A check that passes ends an
// ejection too. now is on the clock of Flow.Now. A backend that the current table does not have is ignored, and so is
// what is known already.
func (b *Balancer) Checked(id ID, addr netip.AddrPort, failed error, now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	snap := b.load()
	slot, ok := snap.table.index.slot(id)
	if !ok {
		return
	}
	s := snap.service(slot)
	for _, k := range s.backends {
		if k.addr != addr {
			continue
		}
		if h := k.health.Load(); failed == nil && (h == nil || !h.failing && !h.ejected) {
			return
		} else if failed == nil && h.ejected {
			b.setFailing(k, false, "")
			b.readmit(k, now, true)
			return
		}
		h := k.record()
		if failed != nil && h.failing {
			h.why = failed.Error()
			return
		}
		why := ""
		if failed != nil {
			why = failed.Error()
		}
		b.setFailing(k, failed != nil, why)
		b.rebuildSoon(slot, s)
		b.notify(Ejection{Service: id, Backend: addr, Returned: failed == nil, Check: true, Err: failed})
		return
	}
}

// Failing returns how many backends fail their checks.
func (b *Balancer) Failing() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.outliers.failing
}

// setFailing notes whether a backend fails its checks, and why. The caller holds b.mu.
func (b *Balancer) setFailing(k *backend, failing bool, why string) {
	h := k.record()
	switch {
	case failing && !h.failing:
		b.outliers.failing++
	case !failing && h.failing:
		b.outliers.failing--
	}
	h.failing, h.why = failing, why
}
