package balancer

import (
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
)

// Active checks: they are made elsewhere ([Policies.ReadinessProbe]), and this says what becomes of them.

// Checked says that a backend passes its active checks, or why it fails them: then it gets no new connections, as if it
// was ejected, and a Service of which too few would stay uses all (Outlier.PanicThreshold). by is the protocol of the
// checks, 0 if there are none any more. A check by the protocol of the Service ends an ejection when it passes. now
// is on the clock of Flow.Now. A backend that the current table does not have is ignored, and so is what is known
// already.
func (hs Health) Checked(id lb.ID, addr netip.AddrPort, by lb.Protocol, failed error, now int64) {
	hs.b.mu.Lock()
	defer hs.b.mu.Unlock()
	snap := hs.b.load()
	slot, ok := snap.table.SlotOf(&id)
	if !ok {
		return
	}
	s := snap.service(slot)
	for _, k := range s.backends {
		if k.addr == addr {
			hs.checked(slot, s, k, by, failed, now)
			return
		}
	}
}

// checked does so for a backend in the table. The caller holds b.mu.
func (hs Health) checked(slot int32, s *service, k *backend, by lb.Protocol, failed error, now int64) {
	id := k.service.id
	asks := by == id.Protocol
	if k.health.Load() == nil && failed == nil && !(asks && id.Protocol == lb.UDP) {
		return
	}
	h := k.record()
	h.probed = asks
	switch {
	case failed == nil && asks && h.ejected:
		hs.setFailing(k, false, "")
		hs.readmit(k, now, true)
	case failed == nil && !h.failing:
	case failed != nil && h.failing:
		h.why = failed.Error()
	default:
		why := ""
		if failed != nil {
			why = failed.Error()
		}
		hs.setFailing(k, failed != nil, why)
		hs.rebuildSoon(slot, s)
		hs.notify(lb.Ejection{Service: id, Backend: k.addr, Returned: failed == nil, Check: true, Err: failed})
	}
}

// Failing returns how many backends fail their checks.
func (hs Health) Failing() int {
	hs.b.mu.Lock()
	defer hs.b.mu.Unlock()
	return hs.b.outliers.failing
}

// setFailing notes whether a backend fails its checks, and why. The caller holds b.mu.
func (hs Health) setFailing(k *backend, failing bool, why string) {
	h := k.record()
	switch {
	case failing && !h.failing:
		hs.b.outliers.failing++
	case !failing && h.failing:
		hs.b.outliers.failing--
	}
	h.failing, h.why = failing, why
}
