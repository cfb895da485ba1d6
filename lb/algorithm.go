package lb

import (
	"fmt"
	"strings"
)

// Algorithm is how the backends of a service are chosen for new clients.
type Algorithm uint8

// The algorithms. The zero Algorithm is what most services have.
const (
	RoundRobin       Algorithm = iota
	LeastConnections           // fewest in flight, by weight; turns among equals
	TwoChoices                 // of two at random the one with fewer in flight
	PeakEWMA                   // of two at random the one that answers sooner, by connections in flight
	Random
	SourceHash // position by a hash of the client
	Maglev     // the same, with few clients that move when backends change
)

// algorithms are the names of ipvsadm, and those of what no kernel has. Turns and least connections go by weight in any
// case.
var algorithms = map[string]Algorithm{
	"rr": RoundRobin, "wrr": RoundRobin, "lc": LeastConnections, "wlc": LeastConnections, "p2c": TwoChoices,
	"ewma": PeakEWMA, "random": Random, "sh": SourceHash, "mh": Maglev, "maglev": Maglev,
}

// algorithmNames are the ones that are shown.
var algorithmNames = [...]string{"rr", "lc", "p2c", "ewma", "random", "sh", "maglev"}

// String returns the name that is shown: rr, lc, p2c, ewma, random, sh or maglev.
func (a Algorithm) String() string { return algorithmNames[a] }

// Hashes reports whether the client decides.
func (a Algorithm) Hashes() bool { return a == SourceHash || a == Maglev }

// portFlags have the port of the client count.
var portFlags = map[Algorithm]string{SourceHash: "sh-port", Maglev: "mh-port"}

// Scheduler is what a Policies.Scheduler says.
type Scheduler struct {
	Algorithm
	Port bool // the port of the client counts, for a hash
}

// String returns the name that is shown, with the flag that counts.
func (s Scheduler) String() string {
	if s.Port {
		return s.Algorithm.String() + "," + portFlags[s.Algorithm]
	}
	return s.Algorithm.String()
}

// ParseScheduler reads a scheduler as ipvsadm has it, the name and its flags separated by commas: "lc", or
// "mh,mh-port". A hash never leads to a backend that is not eligible, as in the kernel with sh-fallback and
// mh-fallback. Empty is rr. The error says why it is not what was requested; then it is rr.
func ParseScheduler(requested string) (of Scheduler, err error) {
	name, flags, _ := strings.Cut(strings.ToLower(strings.TrimSpace(requested)), ",")
	if name == "" && flags == "" {
		return Scheduler{}, nil
	}
	a, ok := algorithms[name]
	if !ok {
		return Scheduler{}, fmt.Errorf("%q is no algorithm of user space: use one of %s", name,
			strings.Join(algorithmNames[:], ", "))
	}
	of.Algorithm = a
	for flag := range strings.SplitSeq(flags, ",") {
		switch flag = strings.TrimSpace(flag); {
		case flag == "" || a == SourceHash && flag == "sh-fallback" || a == Maglev && flag == "mh-fallback":
		case a.Hashes() && flag == portFlags[a]:
			of.Port = true
		default:
			return Scheduler{}, fmt.Errorf("scheduler %s has no flag %q", name, flag)
		}
	}
	return of, nil
}
