package ipvs

import (
	"cmp"

	"github.com/sluice-lb/sluice/lb"
)

// defaultScheduler is kube-proxy's.
const defaultScheduler = "rr"

// Flags of virtual servers, beside those of schedulers (include/uapi/linux/ip_vs.h).
const (
	flagPersistent = 0x0001
	flagHashed     = 0x0002 // the kernel's own
)

// choose returns the scheduler of a Service: the one it requests; the default one if the
// kernel lacks that or there is none of that name; or rr.
func (h *host) choose(s *lb.Service) (name string, flags uint32, _ *Fallback) {
	standard := cmp.Or(h.scheduler, defaultScheduler)
	name, flags, reason := h.usable(cmp.Or(s.Scheduler, standard))
	if reason == "" || s.Scheduler == "" {
		return name, flags, nil
	}
	name, flags, _ = h.usable(standard)
	return name, flags, &Fallback{Service: s.ID, Requested: s.Scheduler, Used: name, Reason: reason}
}

// usable returns the scheduler that is requested, or rr and why.
func (h *host) usable(requested string) (name string, flags uint32, reason string) {
	name, flags, err := parseScheduler(requested)
	if err != nil {
		return defaultScheduler, 0, err.Error()
	}
	if why, ok := h.missing[name]; ok {
		return defaultScheduler, 0, why
	}
	return name, flags, ""
}

// sticky returns a scheduler that chooses by the client's address: mh, which moves few
// clients when backends change, or sh.
func (h *host) sticky() (string, uint32) {
	name, flags, reason := h.usable("mh") // Linux 4.18
	if reason != "" {
		name, flags, _ = h.usable("sh")
	}
	return name, flags
}
