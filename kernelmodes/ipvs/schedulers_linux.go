package ipvs

import (
	"cmp"
)

// defaultScheduler is kube-proxy's.
const defaultScheduler = "rr"

// Flags of virtual servers, beside those of schedulers (include/uapi/linux/ip_vs.h).
const (
	flagPersistent = 0x0001
	flagHashed     = 0x0002 // the kernel's own
)

// choose returns the scheduler of a Service: the one it wishes for, the default one if
// the kernel has not that or there is none of that name, or rr.
func (r *renderer) choose() (string, uint32) {
	standard, wish := cmp.Or(r.scheduler, defaultScheduler), r.service.Scheduler
	r.fallback = nil
	if wish == "" {
		name, flags, _ := r.usable(standard)
		return name, flags
	}
	name, flags, reason := r.usable(wish)
	if reason == "" {
		return name, flags
	}
	name, flags, _ = r.usable(standard)
	r.fallback = &Fallback{Service: r.service.ID, Wish: wish, Used: name, Reason: reason}
	return name, flags
}

// usable returns the scheduler of a wish, or rr and why not.
func (r *renderer) usable(wish string) (name string, flags uint32, reason string) {
	name, flags, err := parseScheduler(wish)
	if err != nil {
		return defaultScheduler, 0, err.Error()
	}
	if why, ok := r.missing[name]; ok {
		return defaultScheduler, 0, why
	}
	return name, flags, ""
}

// sticky returns a scheduler that chooses by the client's address: mh, which moves few
// clients when backends change, or sh.
func (r *renderer) sticky() (string, uint32) {
	if name, flags, reason := r.usable("mh"); reason == "" { // Linux 4.18
		return name, flags
	}
	name, flags, _ := r.usable("sh")
	return name, flags
}
