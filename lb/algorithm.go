package lb

import (
	"fmt"
	"strings"
)

// algorithm is how the backends of a service are chosen for new clients.
type algorithm uint8

const (
	roundRobin       algorithm = iota
	leastConnections           // fewest in flight, by weight; turns among equals
	twoChoices                 // of two at random the one with fewer in flight
	peakEWMA                   // of two at random the one that answers sooner, by connections in flight
	random
	sourceHash // position by a hash of the client
	maglev     // the same, with few clients that move when backends change
)

// algorithms are the names of ipvsadm, and those of what no kernel has. Turns and least connections go by weight in any
// case.
var algorithms = map[string]algorithm{
	"rr": roundRobin, "wrr": roundRobin, "lc": leastConnections, "wlc": leastConnections, "p2c": twoChoices,
	"ewma": peakEWMA, "random": random, "sh": sourceHash, "mh": maglev, "maglev": maglev,
}

// names are the ones that are shown.
var algorithmNames = [...]string{"rr", "lc", "p2c", "ewma", "random", "sh", "maglev"}

// hashes reports whether the client decides.
func (a algorithm) hashes() bool { return a == sourceHash || a == maglev }

// random reports whether chance decides.
func (a algorithm) random() bool { return a == twoChoices || a == peakEWMA || a == random }

// Algorithm returns the algorithm that Pick uses for a Policies.Scheduler, by the name that is shown: rr, lc, p2c,
// ewma, random, sh or maglev, the last two with their flag. The error says why it is not what was requested;
// then it is rr.
func Algorithm(requested string) (inEffect string, err error) {
	a, port, err := parseScheduler(requested)
	inEffect = algorithmNames[a]
	if port {
		inEffect += "," + portFlags[a]
	}
	return inEffect, err
}

// portFlags have the port of the client count.
var portFlags = map[algorithm]string{sourceHash: "sh-port", maglev: "mh-port"}

// parseScheduler reads a scheduler as ipvsadm has it, the name and its flags separated by commas: "lc", or
// "mh,mh-port". port says whether the client's port counts. A hash never leads to a backend that is not eligible, as in
// the kernel with sh-fallback and mh-fallback. Empty is rr.
func parseScheduler(requested string) (a algorithm, port bool, err error) {
	name, flags, _ := strings.Cut(strings.ToLower(strings.TrimSpace(requested)), ",")
	if name == "" && flags == "" {
		return roundRobin, false, nil
	}
	a, ok := algorithms[name]
	if !ok {
		return roundRobin, false, fmt.Errorf("%q is no algorithm of user space: use one of %s", name,
			strings.Join(algorithmNames[:], ", "))
	}
	for flag := range strings.SplitSeq(flags, ",") {
		switch flag = strings.TrimSpace(flag); {
		case flag == "" || a == sourceHash && flag == "sh-fallback" || a == maglev && flag == "mh-fallback":
		case a.hashes() && flag == portFlags[a]:
			port = true
		default:
			return roundRobin, false, fmt.Errorf("scheduler %s has no flag %q", name, flag)
		}
	}
	return a, port, nil
}
