package houserules

import (
	"fmt"
	"slices"
	"strings"
)

// room says what the packages in a folder, and below it, may import. The longest
// folder that fits a package is its room.
type room struct {
	dir    string
	why    string
	ours   []string // rooms of ours that it may name, besides itself
	theirs []string // other modules' packages that it may name; anyone may use the standard library
	not    []string // standard packages that it must not name after all
	never  []string // what must not be below it at any depth
}

// outside is what may be found only below cmd, at any depth of imports: the
// rooms must be usable, testable and small without them.
var outside = []string{"k8s.io", "sigs.k8s.io", "github.com/prometheus", "github.com/spf13/pflag"}

// effects are the packages that a pure room must not name. fmt is allowed, for
// errors, although it imports os itself.
var effects = []string{"time", "os", "net", "log", "syscall", "context", "io/ioutil", "runtime/debug"}

// anyoneElse is every host of Go modules that go.mod names: a pure room has none
// of them below it.
var anyoneElse = []string{
	"github.com", "golang.org", "google.golang.org", "gopkg.in", "go.uber.org", "go.yaml.in", "k8s.io", "sigs.k8s.io",
}

// kernel are the packages that touch the kernel's network tables.
var kernel = []string{
	"golang.org/x/sys", "github.com/coreos/go-iptables",
	"github.com/vishvananda/netlink", "github.com/vishvananda/netns",
}

// forTests are the modules that tests of any room may use besides.
var forTests = []string{
	"github.com/google/go-cmp", "golang.org/x/sys", "golang.org/x/net/dns/dnsmessage",
	"github.com/vishvananda/netlink", "github.com/vishvananda/netns",
	"github.com/pion/sctp", "github.com/pion/logging", // ends of associations that are not ours
}

// anyRoom lists the rooms that the program puts together.
var anyRoom = []string{"affinity", "lb", "internal/eventloop", "internal/socket", "internal/counters", "internal/session", "tcp", "udp", "sctp", "redirect", "kernelmodes"}

// rooms is the table of import directions.
var rooms = []room{
	{
		dir: "affinity", not: effects, never: anyoneElse,
		why: "it is a pure leaf: the same calls give the same answers, with no clock, socket or log in it",
	},
	{
		dir: "lb", ours: []string{"affinity"}, not: effects, never: anyoneElse,
		why: "choosing a backend is pure, so that it can be tested by scripts and explained afterwards",
	},
	{
		dir: "internal/eventloop", theirs: []string{"golang.org/x/sys", "github.com/panjf2000/gnet/v2/pkg"}, never: outside,
		why: "the loop knows no protocol and no backend, so that every protocol can share it",
	},
	{
		dir: "internal/socket", theirs: []string{"golang.org/x/sys"}, never: outside,
		why: "it is system calls only, so that anything may stand on it",
	},
	{
		dir: "internal/mmsg", ours: []string{"internal/socket"}, theirs: []string{"golang.org/x/sys"}, never: outside,
		why: "it is system calls only, so that anything may stand on it",
	},
	{
		dir: "internal/counters", not: effects, never: anyoneElse,
		why: "it adds numbers up, and knows none of them",
	},
	{
		dir: "internal/session", ours: []string{"lb", "internal/eventloop", "internal/socket", "internal/counters"}, theirs: []string{"golang.org/x/sys"}, never: outside,
		why: "it is what accepting, dialling and draining have in common, and knows no protocol",
	},
	{
		dir: "tcp", ours: []string{"lb", "internal/eventloop", "internal/socket", "internal/counters", "internal/session"}, theirs: []string{"golang.org/x/sys"}, never: outside,
		why: "it must not know how traffic got here, how a backend is chosen, or the other protocols",
	},
	{
		dir: "udp", ours: []string{"lb", "internal/eventloop", "internal/socket", "internal/mmsg", "internal/counters"}, theirs: []string{"golang.org/x/sys"}, never: outside,
		why: "it must not know how traffic got here, how a backend is chosen, or the other protocols",
	},
	{
		dir: "sctp", ours: []string{"lb", "internal/eventloop", "internal/socket", "internal/mmsg", "internal/counters", "internal/session"}, theirs: []string{"golang.org/x/sys"}, never: outside,
		why: "it must not know how traffic got here, how a backend is chosen, or the other protocols",
	},
	{
		dir: "internal/netfilter", theirs: kernel, never: outside,
		why: "it is what everything that writes rules has in common, and knows none of those rules",
	},
	{
		dir: "redirect", ours: []string{"lb", "internal/netfilter"}, theirs: kernel, never: outside,
		why: "it steers packets to sockets and must know neither the bytes nor the backends",
	},
	{
		dir: "kernelmodes", ours: []string{"lb", "internal/netfilter"}, theirs: slices.Concat(kernel, []string{"github.com/moby/ipvs"}), never: outside,
		why: "it forwards in the kernel instead of us and must know none of our sockets",
	},
	{
		dir: "cmd", ours: anyRoom, theirs: []string{"*"},
		why: "the program puts the rooms together and is nobody's library",
	},
	{
		dir: "cmd/sluice/internal/agent", ours: anyRoom, theirs: []string{"go.uber.org/zap"}, never: []string{"k8s.io", "sigs.k8s.io"},
		why: "the order in which a table is applied must not depend on where the table came from",
	},
	{
		dir: "bench/testbed", theirs: slices.Concat(kernel, []string{"golang.org/x/net/dns/dnsmessage"}), never: outside,
		why: "tests of every room stand on it, so it can stand on none of them",
	},
	{
		dir: "bench", ours: []string{"bench/testbed", "lb"}, theirs: slices.Concat(kernel, []string{"golang.org/x/net/dns/dnsmessage"}), never: outside,
		why: "load and demonstrations use the program as an operator does, from outside",
	},
	{
		dir: "bench/offload", ours: []string{"bench/testbed", "lb", "kernelmodes"}, never: outside,
		why: "it measures one room alone, so that nothing else is in its figures",
	},
	{
		dir: "internal/houserules", never: outside,
		why: "the rules look at the code and must not depend on it",
	},
}

func importRules() []rule {
	lbImports := func(paths ...string) []pkg {
		return []pkg{{GOOS: "linux", ImportPath: module + "/lb", Imports: paths, Deps: paths}}
	}
	in := func(dir string, paths ...string) example {
		return example{packages: []pkg{{GOOS: "linux", ImportPath: module + "/" + dir, Imports: paths, Deps: paths}}}
	}
	wants := func(ex example, want ...string) example {
		ex.want = want
		return ex
	}
	return []rule{{
		name:  "imports go one way",
		why:   "a room can be read, tested and replaced alone only as long as it knows only the rooms below it",
		check: checkImports,
		broken: []example{
			wants(in("lb", "time"), "lb (linux) imports time"),
			wants(in("affinity", "net/http"), "affinity (linux) imports net/http"),
			wants(in("affinity", module+"/lb"), "affinity (linux) imports "+module+"/lb"),
			wants(in("tcp", module+"/udp"), "tcp (linux) imports "+module+"/udp"),
			wants(in("tcp", module+"/redirect"), "must not know how traffic got here"),
			wants(in("internal/eventloop", "github.com/panjf2000/gnet/v2"), "imports github.com/panjf2000/gnet/v2:"),
			wants(in("bench/testbed", module+"/lb"), "stand on it"),
			wants(in("attic", "fmt"), "attic: no rule"),
			wants(in("redirect", "k8s.io/api/core/v1"), "imports k8s.io", "has k8s.io/api/core/v1 below it"),
			wants(in("cmd/sluice/internal/agent", "k8s.io/api/core/v1"), "imports k8s.io", "below it"),
			{
				packages: []pkg{{GOOS: "windows", ImportPath: module + "/lb", Imports: []string{module + "/affinity"}, Deps: []string{"golang.org/x/sys/windows"}}},
				want:     []string{"lb (windows) has golang.org/x/sys/windows below it"},
			},
			{
				packages: []pkg{{GOOS: "linux", ImportPath: module + "/udp", XTestImports: []string{module + "/tcp"}}},
				want:     []string{"udp (linux) imports " + module + "/tcp in a test"},
			},
		},
		fine: []example{
			{packages: lbImports("fmt", "net/netip", "sync/atomic", module+"/affinity")},
			in("cmd/sluice", "k8s.io/api/core/v1", module+"/tcp"),
			{packages: []pkg{{GOOS: "linux", ImportPath: module + "/lb", TestImports: []string{"os", "time", "github.com/google/go-cmp/cmp"}}}},
			{packages: []pkg{{GOOS: "linux", ImportPath: module + "/tcp", XTestImports: []string{module + "/bench/testbed", module + "/tcp"}}}},
		},
	}}
}

// checkImports compares what every package imports with the table of rooms.
func checkImports(r *repo) []string {
	var found []string
	for _, p := range r.packages {
		dir := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		room, ok := roomOf(dir)
		if !ok {
			found = append(found, dir+": no rule says what this folder may import; add it to the rooms with the reason")
			continue
		}
		who := fmt.Sprintf("%s (%s)", dir, p.GOOS)
		for _, imp := range p.Imports {
			if !room.allows(imp, room.theirs) || under(imp, room.not) && imp != "net/netip" {
				found = append(found, fmt.Sprintf("%s imports %s: %s", who, imp, room.why))
			}
		}
		for _, imp := range slices.Concat(p.TestImports, p.XTestImports) {
			if !room.allows(imp, slices.Concat(room.theirs, forTests)) && imp != module+"/bench/testbed" {
				found = append(found, fmt.Sprintf("%s imports %s in a test: %s", who, imp, room.why))
			}
		}
		for _, dep := range p.Deps {
			if dep != p.ImportPath && under(dep, room.never) && !under(dep, []string{module}) {
				found = append(found, fmt.Sprintf("%s has %s below it: %s", who, dep, room.why))
			}
		}
	}
	return found
}

// allows reports whether the room may name imp, given the foreign packages it may use.
func (m room) allows(imp string, theirs []string) bool {
	if imp == module || strings.HasPrefix(imp, module+"/") {
		dir := strings.TrimPrefix(strings.TrimPrefix(imp, module), "/")
		target, ok := roomOf(dir)
		return ok && (target.dir == m.dir || m.dir == "cmd" && under(dir, []string{"cmd"}) || slices.Contains(m.ours, target.dir))
	}
	if first, _, _ := strings.Cut(imp, "/"); !strings.Contains(first, ".") {
		return true // the standard library
	}
	return slices.Contains(theirs, "*") || under(imp, theirs)
}

// roomOf finds the room with the longest folder that holds dir.
func roomOf(dir string) (room, bool) {
	var best room
	for _, m := range rooms {
		if under(dir, []string{m.dir}) && len(m.dir) > len(best.dir) {
			best = m
		}
	}
	return best, best.dir != ""
}

// under reports whether the path is one of the prefixes or below one.
func under(path string, prefixes []string) bool {
	for _, p := range prefixes {
		if path == p || strings.HasPrefix(path, p+"/") {
			return true
		}
	}
	return false
}
