package ipvs

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/sluice-lb/sluice/lb"
)

// schedulers are those of Linux 6.18, of which a kernel may lack some.
var schedulers = []string{"dh", "fo", "lblc", "lblcr", "lc", "mh", "nq", "ovf", "rr", "sed", "sh", "twos", "wlc", "wrr"}

// defaultScheduler is kube-proxy's.
const defaultScheduler = "rr"

// Flags of virtual servers (include/uapi/linux/ip_vs.h). The latter two mean what the
// scheduler says.
const (
	flagPersistent = 0x0001
	flagHashed     = 0x0002 // the kernel's own
	flagSched1     = 0x0008
	flagSched2     = 0x0010
)

// parseScheduler reads a scheduler as ipvsadm has it, the name and its flags separated
// by commas: "wlc", or "mh,mh-port".
//
// sh and mh choose a backend of weight 0 unless told to choose another (sh-fallback,
// mh-fallback). As ours have that weight when they are to have no new connections,
// they are told so always.
func parseScheduler(wish string) (name string, flags uint32, err error) {
	name, more, _ := strings.Cut(strings.ToLower(strings.TrimSpace(wish)), ",")
	if name == "" || len(name) > 15 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return "", 0, fmt.Errorf("%q is no name of a scheduler", wish)
	}
	hashes := name == "sh" || name == "mh"
	if hashes {
		flags = flagSched1
	}
	for flag := range strings.SplitSeq(more, ",") {
		switch flag = strings.TrimSpace(flag); {
		case flag == "" || hashes && flag == name+"-fallback":
		case hashes && flag == name+"-port":
			flags |= flagSched2
		default:
			return "", 0, fmt.Errorf("scheduler %s has no flag %q", name, flag)
		}
	}
	return name, flags, nil
}

// choose returns the scheduler of a Service: the one it wishes for, the default one if
// the kernel has not that or there is none of that name, or rr.
func (r *renderer) choose(s *lb.Service) (string, uint32) {
	standard := cmp.Or(r.scheduler, defaultScheduler)
	if s.Scheduler == "" {
		name, flags, _ := r.usable(standard)
		return name, flags
	}
	name, flags, reason := r.usable(s.Scheduler)
	if reason == "" {
		return name, flags
	}
	name, flags, _ = r.usable(standard)
	if n := len(r.fallbacks); n == 0 || r.fallbacks[n-1].Service != s.ID {
		r.fallbacks = append(r.fallbacks, Fallback{Service: s.ID, Wish: s.Scheduler, Used: name, Reason: reason})
	}
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
