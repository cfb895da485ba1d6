package lb

import (
	"math"
	"net/netip"
	"slices"
)

// Endpoints that an operator has drained: they get no new connections on any data path, as those with a weight of 0.
// Connections that are open stay, or are reset at a deadline.

// Drain is what one command of an operator has drained.
type Drain struct {
	// Addr is the address of the endpoints; port 0 stands for all. The zero AddrPort leaves it to Node.
	Addr netip.AddrPort
	Node string // that they run on, if they are not named by their address

	Service  Name   // the only Service whose endpoints they are; the zero Name: they are drained in all
	Deadline int64  // when their connections are reset, in ns of a monotonic clock; 0: they stay
	By       string // who has asked for it
}

// Same reports whether two drains are of the same endpoints.
func (d Drain) Same(o Drain) bool {
	return d.Addr == o.Addr && d.Node == o.Node && d.Service == o.Service
}

// Host is where an endpoint of a Service is.
type Host struct {
	Service Name
	Addr    netip.Addr
}

// cover is a drain at one host.
type cover struct {
	*Drain
	of Name // the only Service of which it is at this host; the zero Name: of all
}

// covers reports whether an endpoint of a service at the host of d is one of those.
func (d cover) covers(id *ID, port uint16) bool {
	return (d.of == Name{} || d.of == id.Service()) && (d.Service == Name{} || d.Service == id.Service()) &&
		(d.Addr.Port() == 0 || d.Addr.Port() == port)
}

// Drains are all that is drained at one moment. They are immutable; nil is none.
type Drains struct {
	all       []Drain
	hosts     map[netip.Addr][]cover // in the order of all
	deadlines bool                   // there are some
}

// NewDrains returns the drains of all, which it owns from now on; nil for none. on returns the endpoints that run on a
// node; nil: they are not known.
func NewDrains(all []Drain, on func(node string) []Host) *Drains {
	if len(all) == 0 {
		return nil
	}
	d := &Drains{all: all, hosts: make(map[netip.Addr][]cover)}
	for i := range all {
		k := &all[i]
		d.deadlines = d.deadlines || k.Deadline != 0
		hosts := []Host{{Addr: k.Addr.Addr()}}
		if k.Node != "" {
			if hosts = nil; on != nil {
				hosts = on(k.Node)
			}
		}
		for _, host := range hosts {
			at, c := plain(host.Addr), cover{k, host.Service}
			if known := d.hosts[at]; !slices.Contains(known, c) { // by several slices
				d.hosts[at] = append(known, c)
			}
		}
	}
	return d
}

// All returns what NewDrains was given, which must not be changed.
func (d *Drains) All() []Drain {
	if d == nil {
		return nil
	}
	return d.all
}

// Equal reports whether d and o are the same, and of endpoints at the same addresses.
func (d *Drains) Equal(o *Drains) bool {
	if d == nil || o == nil {
		return d == o
	}
	if len(d.hosts) != len(o.hosts) || !slices.Equal(d.all, o.all) {
		return false
	}
	for host, list := range d.hosts {
		same := func(a, b cover) bool { return *a.Drain == *b.Drain && a.of == b.of }
		if !slices.EqualFunc(list, o.hosts[host], same) {
			return false
		}
	}
	return true
}

// Of returns what drains an endpoint of a service: of several the one whose deadline comes first; false: nothing does.
func (d *Drains) Of(id ID, addr netip.AddrPort) (Drain, bool) {
	k := d.of(&id, addr)
	if k == nil {
		return Drain{}, false
	}
	return *k, true
}

// Until returns the deadline of the connections of an endpoint of a service; math.MaxInt64: there is none.
func (d *Drains) Until(id *ID, addr netip.AddrPort) int64 {
	if d == nil || !d.deadlines {
		return math.MaxInt64
	}
	if k := d.of(id, addr); k != nil {
		return k.ends()
	}
	return math.MaxInt64
}

func (d *Drains) of(id *ID, addr netip.AddrPort) (first *Drain) {
	if d == nil {
		return nil
	}
	for _, k := range d.hosts[plain(addr.Addr())] {
		if k.covers(id, addr.Port()) && (first == nil || k.ends() < first.ends()) {
			first = k.Drain
		}
	}
	return first
}

// ends is Deadline, where none is never.
func (d *Drain) ends() int64 {
	if d.Deadline == 0 {
		return math.MaxInt64
	}
	return d.Deadline
}

// Counts returns how many backends of services each of All is of.
func (d *Drains) Counts(services []*Service) []int {
	counts := make([]int, len(d.All()))
	of := make(map[*Drain]int)
	for i := range counts {
		of[&d.all[i]] = i
	}
	if len(of) == 0 {
		return counts
	}
	for _, s := range services {
		for i := range s.Backends {
			addr := s.Backends[i].Addr
			for _, k := range d.hosts[plain(addr.Addr())] {
				if k.covers(&s.ID, addr.Port()) {
					counts[of[k.Drain]]++
				}
			}
		}
	}
	return counts
}

// Mark returns s with Drained where an endpoint is, which is s itself if nothing is different. One whose deadline is
// over serves no longer, so that flows go elsewhere that do not end by themselves.
func (d *Drains) Mark(s *Service, now int64) *Service {
	backends, shared := s.Backends, true
	for i := range s.Backends {
		b := s.Backends[i]
		k := d.of(&s.ID, b.Addr)
		b.Drained, b.Ended = k != nil, k != nil && k.ends() <= now
		if b.Ended {
			b.Ready, b.Serving = false, false
		}
		if b == s.Backends[i] {
			continue
		}
		if shared {
			backends, shared = slices.Clone(backends), false
		}
		backends[i] = b
	}
	if shared {
		return s
	}
	marked := *s
	marked.Backends = backends
	return &marked
}

// Next returns the first deadline after now; math.MaxInt64: there is none.
func (d *Drains) Next(now int64) int64 {
	next := int64(math.MaxInt64)
	if d == nil {
		return next
	}
	for i := range d.all {
		if end := d.all[i].ends(); end > now {
			next = min(next, end)
		}
	}
	return next
}

// Stranded returns those of services, each once, of which a port has no endpoint for new connections by d, and has one
// by before.
func (d *Drains) Stranded(services []*Service, before *Drains, now int64) (out []Name) {
	for _, s := range services {
		was, is := before.Mark(s, now), d.Mark(s, now)
		if is == was || is.Equal(was) {
			continue
		}
		lost := len(was.Eligible()) > 0 && len(is.Eligible()) == 0
		local := func(a Address) bool { return a.Local }
		if !lost && slices.ContainsFunc(s.Addresses, local) {
			lost = len(was.EligibleLocal()) > 0 && len(is.EligibleLocal()) == 0
		}
		if lost && !slices.Contains(out, s.ID.Service()) {
			out = append(out, s.ID.Service())
		}
	}
	return out
}

// Drained returns how many backends of s are.
func (s *Service) Drained() (n int) {
	for i := range s.Backends {
		if s.Backends[i].Drained {
			n++
		}
	}
	return n
}
