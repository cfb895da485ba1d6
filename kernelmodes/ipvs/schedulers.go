package ipvs

import (
	"fmt"
	"slices"
	"strings"
)

// schedulers are those of Linux 6.18, of which a kernel may lack some.
var schedulers = []string{"dh", "fo", "lblc", "lblcr", "lc", "mh", "nq", "ovf", "rr", "sed", "sh", "twos", "wlc", "wrr"}

// Flags of virtual servers (include/uapi/linux/ip_vs.h).
const (
	flagPersistent = 0x0001
	flagHashed     = 0x0002 // the kernel's own
	flagSched1     = 0x0008 // the scheduler interprets it
	flagSched2     = 0x0010 // the same
)

// CheckScheduler reports what is wrong with a scheduler, spelled as lb.Service.Scheduler
// is, that no kernel has: nil for one that some kernel has.
func CheckScheduler(requested string) error {
	name, _, err := parseScheduler(requested)
	if err == nil && !slices.Contains(schedulers, name) {
		return fmt.Errorf("%q is no scheduler of IPVS: give one of %s", name, strings.Join(schedulers, ", "))
	}
	return err
}

// parseScheduler reads a scheduler as ipvsadm has it, the name and its flags separated
// by commas: "wlc", or "mh,mh-port".
//
// sh and mh choose a backend of weight 0 without the flag for another (sh-fallback,
// mh-fallback). As ours have that weight when they are to have no new connections,
// they always have it.
func parseScheduler(requested string) (name string, flags uint32, err error) {
	name, more, _ := strings.Cut(strings.ToLower(strings.TrimSpace(requested)), ",")
	if name == "maglev" { // what mh is
		name = "mh"
	}
	if name == "" || len(name) > 15 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return "", 0, fmt.Errorf("%q is no name of a scheduler", requested)
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
