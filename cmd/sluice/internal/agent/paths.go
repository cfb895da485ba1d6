package agent

import (
	"errors"
	"fmt"
	"reflect"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/lb"
)

// Path is who forwards a Service.
type Path uint8

// The paths. Nobody is the zero Path, and what becomes of a Service that none of the
// others can forward.
const (
	Nobody Path = iota
	Userspace
	IPTables
	IPVS
	pathCount
)

// String returns the name that --proxy-mode and the annotation sluice.io/data-path
// have for the path, or "none".
func (p Path) String() string {
	switch p {
	case Userspace:
		return "userspace"
	case IPTables:
		return "iptables"
	case IPVS:
		return "ipvs"
	}
	return "none"
}

// ParsePath reads what String writes but "none".
func ParsePath(s string) (Path, bool) {
	for p := Userspace; p < pathCount; p++ {
		if p.String() == s {
			return p, true
		}
	}
	return Nobody, false
}

// Choice is the path of one Service, and why it is that.
type Choice struct {
	Path  Path
	Why   string // what asked for the path
	Unmet string // why it is not the path that was asked for; empty if it is
}

// abilities says which paths there are for the Services of one family: why not, or nil.
type abilities [pathCount + 1]error

// userspaceSCTP is the place in abilities of why user space does not forward SCTP.
const userspaceSCTP = pathCount

// equal reports whether both are the same for the same reasons.
func (can *abilities) equal(other *abilities) bool {
	for path, why := range can {
		is := other[path]
		if (why == nil) != (is == nil) || why != nil && !(reflect.ValueOf(why).Comparable() && why == is) {
			return false
		}
	}
	return true
}

// all reports whether there is somebody for every Service.
func (can *abilities) all() bool {
	kernel := can[IPTables] == nil || can[IPVS] == nil
	return kernel || can[Userspace] == nil && can[userspaceSCTP] == nil
}

var (
	errNoFamily = errors.New("its address family is not served on this node")
	errNoEngine = errors.New("this program has no such engine")
	errSCTP     = errors.New("SCTP is not forwarded in user space")
)

// abilities returns what this host can.
func (a *Agent) abilities(ipv6 bool) abilities {
	f := a.family(ipv6)
	var can abilities
	if a.SCTP == nil {
		can[userspaceSCTP] = errSCTP
	}
	if !f.served() {
		return abilities{Userspace: errNoFamily, IPTables: errNoFamily, IPVS: errNoFamily}
	}
	for path, e := range map[Path]struct {
		engine Engine
		why    error
	}{IPTables: {f.IPTables, f.NoIPTables}, IPVS: {f.IPVS, f.NoIPVS}} {
		if can[path] = a.paths.failed[familyPath{ipv6, path}]; e.engine == nil {
			can[path] = errNoEngine
			if e.why != nil {
				can[path] = e.why
			}
		}
	}
	return can
}

// choose decides who forwards a Service: this is the only place. What its annotation
// wishes goes before the mode, if it is a path and this host has it; a mode that this
// host does not have is userspace. What user space cannot, the kernel may.
func choose(s *lb.Service, mode Path, of *abilities) Choice {
	can := *of
	if s.Protocol == lb.SCTP && can[Userspace] == nil {
		can[Userspace] = can[userspaceSCTP]
	}
	c := Choice{Path: mode, Why: "--proxy-mode"}
	if s.DataPath != "" {
		wish, ok := ParsePath(s.DataPath)
		switch {
		case !ok:
			c.Unmet = fmt.Sprintf("there is no data path %q: use userspace, iptables or ipvs", s.DataPath)
		case can[wish] != nil:
			c.Unmet = fmt.Sprintf("data path %s cannot be had: %v", wish, can[wish])
			c.Path = Userspace
		default:
			return Choice{Path: wish, Why: wished}
		}
	}
	if can[c.Path] == nil {
		return c
	}
	if c.Unmet == "" {
		c.Unmet = fmt.Sprintf("data path %s cannot be had: %v", c.Path, can[c.Path])
	}
	for _, path := range []Path{Userspace, IPTables, IPVS} {
		if can[path] == nil {
			c.Path, c.Why = path, "what there is"
			return c
		}
	}
	c.Path, c.Why = Nobody, "nobody can forward it"
	return c
}

// Choose says who forwards a Service in a mode on a host that has every path.
func Choose(s *lb.Service, mode Path) Choice { return choose(s, mode, new(abilities)) }

// familyPath is an engine.
type familyPath struct {
	ipv6 bool
	path Path
}

// paths is what has been decided.
type paths struct {
	// special are the Services that are not simply on the path of the mode, which are
	// few: those with a wish, or a reason why one is not met.
	special map[lb.ID]special
	count   [pathCount]int

	last   *lb.Table                         // that special is about
	in     map[familyPath]map[lb.ID]struct{} // what engines have, maybe beside another path
	failed map[familyPath]error              // engines that could not do what they should in this Apply
}

// special is a choice and the wish behind it.
type special struct {
	Choice
	wish string
	told bool // Agent.Unmet knows of it
}

// plain reports whether there is nothing to tell of a choice: there was no wish, and none
// that is not met.
func (c *Choice) plain() bool { return c.Unmet == "" && c.Why != wished }

// wished is Choice.Why of those who got what they wished.
const wished = "annotation sluice.io/data-path"

// decide remembers the choices, and tells what is worth telling of those that are new:
// a Service that moves, and a wish that is not met, or met again.
func (a *Agent) decide(m *move) {
	now := make(map[lb.ID]special)
	var count [pathCount]int
	for i := range m.choices {
		c := &m.choices[i]
		count[c.Path]++
		if len(a.paths.special) == 0 && c.plain() {
			continue
		}
		s := m.table.At(i)
		was, before := a.paths.special[s.ID]
		if c.Unmet == "" && s.DataPath == "" && !before {
			continue
		}
		if !before {
			was.Path = a.usual()
		}
		is := special{Choice: *c, wish: s.DataPath}
		if is.wish == "" {
			is.wish = a.usual().String()
		}
		// What all Services suffer from is told where it happens.
		is.told = c.Unmet != "" && (s.DataPath != "" || s.Protocol == lb.SCTP)
		if c.Unmet != "" || s.DataPath != "" {
			now[s.ID] = is
		}
		a.report(m, s, is, was)
	}
	for id, was := range a.paths.special {
		if _, there := m.table.Service(id); !there && was.told {
			a.tell(id, was.wish, was.Path, "")
		}
	}
	a.paths.last = m.table
	a.mu.Lock()
	defer a.mu.Unlock()
	a.paths.special, a.paths.count = now, count
}

// report tells of the new choice for one Service, and notes that it moves.
func (a *Agent) report(m *move, s *lb.Service, c, was special) {
	fields := []zap.Field{zap.Stringer("service", s.ID), zap.Stringer("protocol", s.Protocol), zap.Bool("ipv6", s.IPv6), zap.Stringer("data path", c.Path)}
	switch {
	case c.told && (!was.told || was.Unmet != c.Unmet || was.wish != c.wish):
		a.Log.Warn("the data path of a Service is not as wished", append(fields, zap.String("reason", c.Unmet))...)
		a.tell(s.ID, c.wish, c.Path, c.Unmet)
	case !c.told && was.told:
		a.tell(s.ID, was.wish, c.Path, "")
	}
	if a.paths.last == nil {
		return
	}
	if _, known := a.paths.last.Service(s.ID); known && was.Path != c.Path {
		m.movers = append(m.movers, mover{s, was.Path, c.Path})
		a.Log.Info("a Service moves to another data path", append(fields, zap.Stringer("from", was.Path), zap.String("reason", c.Why))...)
	}
}

// usual is the path of Services that wish none.
func (a *Agent) usual() Path {
	if a.Mode == Nobody {
		return Userspace
	}
	return a.Mode
}

func (a *Agent) tell(id lb.ID, wish string, instead Path, reason string) {
	if a.Unmet != nil {
		a.Unmet(id, wish, instead, reason)
	}
}
