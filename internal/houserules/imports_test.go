package houserules

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// layer says what the packages in a folder, and below it, may import. The longest
// folder that holds a package has its layer.
type layer struct {
	dir    string
	why    string
	ours   []string // layers of ours that it may name, besides itself
	theirs []string // other modules' packages that it may name; all may use the standard library
	tests  []string // packages of ours that its tests may name besides, and the testbed
	not    []string // standard packages that it must not name after all
	never  []string // what must not be below it at any depth
}

// outside is what may be found only below cmd, at any depth of imports: all else must be
// usable, testable and small without it.
var outside = []string{"k8s.io", "sigs.k8s.io", "github.com/prometheus", "github.com/spf13/pflag"}

// effects are the packages that a pure package must not name. fmt is allowed, for
// errors, although it imports os itself.
var effects = []string{"time", "os", "net", "log", "syscall", "context", "io/ioutil", "runtime/debug"}

// running are what only code that runs needs: what is said of services has neither.
var running = []string{"sync", "sync/atomic"}

// foreign is every host of Go modules that go.mod names: nothing of them is below a pure package.
var foreign = []string{
	"github.com", "golang.org", "google.golang.org", "gopkg.in", "go.uber.org", "go.yaml.in", "k8s.io", "sigs.k8s.io",
}

// kernel are the packages that read and write the kernel's network tables.
var kernel = []string{
	"golang.org/x/sys", "github.com/coreos/go-iptables", "github.com/vishvananda/netlink", "github.com/vishvananda/netns",
	"github.com/google/nftables",
}

// foundations are the libraries that Sluice was asked to stand on: the program imports each.
var foundations = []string{
	"github.com/cloudflare/tableflip", "github.com/coreos/go-iptables", "github.com/moby/ipvs", "go.uber.org/zap",
	"k8s.io/api", "github.com/panjf2000/gnet/v2", "github.com/prometheus/client_golang", "golang.org/x/sys",
	"k8s.io/client-go",
}

// forTests are the modules that all tests may use besides.
var forTests = []string{
	"github.com/google/go-cmp", "golang.org/x/sys", "golang.org/x/net/dns/dnsmessage",
	"github.com/vishvananda/netlink", "github.com/vishvananda/netns",
	"github.com/pion/sctp", "github.com/pion/logging", // ends of associations that are not ours
}

// sockets are what the data paths through sockets stand on; parts are the layers that the
// program puts together.
var (
	sockets = []string{"lb", runs, "internal/eventloop", "internal/socket", "internal/counters", "internal/shares",
		"internal/proxyproto", "internal/look", "internal/session", "internal/mmsg"}
	parts = slices.Concat(sockets, []string{"affinity", "tcp", "udp", "sctp", "redirect", "kernelmodes",
		"kernelmodes/queue", "internal/netfilter", "internal/flows", "internal/flows/track", "internal/flows/report",
		"internal/lists"})
)

// runs is what those do not know that say what is to be balanced.
const runs = "lb/balancer"

// talks is what talks to conntrack: only internal/flows does.
const talks = "internal/netfilter/conntrack"

const dataPath = "it must not know how traffic got here, how a backend is chosen, or the other protocols"

// wing is a folder of the program's own packages, which imports those below it.
func wing(name string, below ...string) layer {
	ours := slices.Clone(parts)
	strict := map[string][]string{"control": {"agent"}, "sources": {"policies", "nearest"}} // that have rules of their own
	for _, dir := range append(below, name) {
		ours = append(ours, "cmd/sluice/internal/"+dir)
		for _, one := range strict[dir] {
			ours = append(ours, "cmd/sluice/internal/"+dir+"/"+one)
		}
	}
	return layer{dir: "cmd/sluice/internal/" + name, ours: ours, theirs: []string{"*"}, why: "the wings of the program import " +
		"in one direction: process, observe, control, config, sources"}
}

// planning returns a layer that says what is to be balanced, and must not know what runs.
func (m layer) planning() layer {
	m.ours = slices.DeleteFunc(m.ours, func(dir string) bool { return dir == runs })
	m.why += "; and the Balancer is told of tables by the wings above"
	return m
}

// testedWith returns a layer whose tests may name a folder besides.
func (m layer) testedWith(dir string) layer {
	m.tests = append(m.tests, dir)
	return m
}

// layers is the table of import directions.
var layers = []layer{
	{dir: "affinity", not: effects, never: foreign, why: "it is a pure leaf: the same calls give the same answers"},
	{
		dir: "lb", not: slices.Concat(effects, running), never: foreign,
		why: "what is to be balanced is pure and immutable, so that the control plane and every loop can share it",
	},
	{
		dir: "lb/balancer", ours: []string{"lb", "affinity"}, not: effects, never: foreign,
		why: "choosing a backend has no effects, so that it can be tested by scripts and explained afterwards",
	},
	{
		dir: "internal/eventloop", theirs: []string{"golang.org/x/sys", "github.com/panjf2000/gnet/v2/pkg"}, never: outside,
		why: "the loop knows no protocol and no backend, so that every protocol can share it",
	},
	{
		dir: "internal/socket", theirs: []string{"golang.org/x/sys"}, never: outside,
		why: "it is system calls only, so that everything may use it",
	},
	{dir: "internal/counters", not: effects, never: foreign, why: "it adds numbers up, and knows none of them"},
	{dir: "internal/shares", not: effects, never: foreign, why: "it compares numbers; what is free, and when, others say"},
	{dir: "internal/lists", not: effects, never: foreign, why: "it knows nothing of what is in a list"},
	{dir: "internal/proxyproto", not: effects, never: foreign, why: "it is bytes only, which others send"},
	{dir: "internal/look", ours: []string{"lb"}, never: outside,
		why: "it says what others find, and looks at nothing itself"},
	{
		dir: "internal/mmsg", ours: []string{"internal/socket"}, theirs: []string{"golang.org/x/sys"}, never: outside,
		why: "it is batches of messages only, for every protocol that has them",
	},
	{
		dir: "internal/session", ours: sockets, theirs: []string{"golang.org/x/sys"}, never: outside,
		why: "accepting, dialling and draining are the same for every protocol with connections",
	},
	{dir: "tcp", ours: sockets, theirs: []string{"golang.org/x/sys"}, never: outside, why: dataPath},
	{dir: "udp", ours: sockets, theirs: []string{"golang.org/x/sys"}, never: outside, why: dataPath},
	{dir: "sctp", ours: sockets, theirs: []string{"golang.org/x/sys"}, never: outside, why: dataPath},
	{
		dir: "internal/netfilter", ours: []string{"lb"}, theirs: kernel, never: outside,
		why: "it is what everything that writes rules has in common: it knows frontends, and none of those rules",
	},
	{
		dir: "internal/netfilter/conntrack", ours: []string{"lb", "internal/netfilter"}, theirs: kernel, never: outside,
		why: "it talks to the kernel about connections, for package flows alone",
	},
	{
		dir: "internal/flows", ours: []string{"lb", "internal/look", "internal/shares", "internal/netfilter", talks}, never: outside,
		theirs: []string{"go.uber.org/zap"},
		why: "what the kernel forwards is one room: one subscription to events, one function that reads the table, " +
			"and all who delete entries",
	},
	{
		dir: "internal/flows/track", never: outside, theirs: []string{"go.uber.org/zap"},
		ours: []string{"lb", runs, "internal/flows", "internal/shares", "internal/netfilter", talks},
		why:  "it tells the Balancer what becomes of flows that the kernel forwards, and knows no rules",
	},
	{
		dir: "internal/flows/report", never: outside, theirs: []string{"go.uber.org/zap"},
		ours: []string{"lb", runs, "internal/flows", "internal/look", "internal/shares", "internal/netfilter", talks},
		why:  "it says of flows what others read, and changes none",
	},
	{
		dir: "redirect", ours: []string{"lb", "internal/netfilter", "internal/flows"}, theirs: kernel, never: outside,
		why: "it steers packets to sockets and must know neither the bytes nor the backends",
	},
	{
		dir: "kernelmodes", ours: []string{"lb", "internal/netfilter", "internal/flows", "internal/shares"}, never: outside,
		tests:  []string{"kernelmodes/lab", talks},
		theirs: slices.Concat(kernel, []string{"github.com/moby/ipvs"}),
		why:    "it forwards in the kernel and must know no sockets of the proxy",
	},
	{
		dir: "kernelmodes/queue", ours: []string{"lb", runs, "kernelmodes", "internal/netfilter", "internal/flows",
			"internal/flows/track", "internal/shares"},
		theirs: kernel, never: outside, tests: []string{"kernelmodes/lab", talks},
		why: "the Balancer chooses for its rules, and it must know no sockets of the proxy",
	},
	{
		dir: "kernelmodes/lab", ours: []string{"lb", "kernelmodes", "internal/flows", "internal/testbed"},
		theirs: []string{"go.uber.org/zap"}, never: outside,
		why: "it tests engines on hosts of the testbed",
	},
	{dir: "cmd", ours: slices.Concat(parts, []string{"cmd"}), theirs: []string{"*"}, why: "the program puts the packages together and is no library"},
	wing("process", "observe", "control", "config", "sources"),
	wing("observe", "control", "config", "sources").testedWith("cmd/sluice/internal/process"), // which has metrics, too
	wing("control", "sources"),
	wing("config", "sources").planning(),
	wing("sources").planning(),
	{
		dir: "cmd/sluice/internal/e2e", ours: slices.Concat(parts, []string{"cmd", "internal/testbed"}), theirs: []string{"*"},
		tests: []string{"kernelmodes/lab"}, why: "it tests the whole program on hosts of the testbed",
	},
	{
		dir: "cmd/sluice/internal/control/agent", ours: slices.Concat(parts, []string{"cmd/sluice/internal/sources/policies"}),
		theirs: []string{"go.uber.org/zap"}, never: []string{"k8s.io", "sigs.k8s.io"},
		why: "the order in which a table is applied must not depend on where the table came from",
	},
	{
		dir: "cmd/sluice/internal/sources/policies", ours: []string{"lb", "kernelmodes", "cmd/sluice/internal/sources/nearest"},
		theirs: []string{"go.yaml.in"}, never: []string{"k8s.io", "sigs.k8s.io"},
		why: "the agent uses it, and what a policy is must not depend on who requests it",
	},
	{dir: "cmd/sluice/internal/sources/nearest", not: effects, never: foreign, why: "it compares words"},
	{
		dir: "internal/testbed", never: outside,
		theirs: slices.Concat(kernel, []string{"golang.org/x/net/dns/dnsmessage", "github.com/google/go-cmp"}),
		why:    "tests of every package use it, so it can use none of them",
	},
	{
		dir: "deploy/conformance", never: outside,
		why: "its programs see Sluice as any client of a cluster does",
	},
	{
		dir: "deploy/helm", never: outside, theirs: []string{"go.yaml.in/yaml/v3"},
		why: "it holds the chart to its documents",
	},
	{dir: "deploy/release", never: outside, why: "it reads the programs that it packs, and must pack any"},
	{
		dir: "bench", ours: []string{"internal/testbed", "lb", "kernelmodes", "internal/mmsg"}, never: outside,
		theirs: slices.Concat(kernel, []string{"golang.org/x/net/dns/dnsmessage", "github.com/HdrHistogram/hdrhistogram-go"}),
		why:    "load and demonstrations use the program as an operator does, from outside",
	},
	{dir: "internal/houserules", never: outside, why: "the rules look at the code and must not depend on it"},
}

const importsWhy = "a package can be read, tested and replaced alone only as long as it knows only those below it"

// TestFoundations: the program itself has each of them below it.
func TestFoundations(t *testing.T) {
	r := load(t)
	i := slices.IndexFunc(r.packages, func(p pkg) bool {
		return p.GOOS == "linux" && p.ImportPath == module+"/cmd/sluice"
	})
	for _, library := range foundations {
		if !slices.ContainsFunc(r.packages[i].Deps, func(dep string) bool { return under(dep, []string{library}) }) {
			t.Errorf("nothing in cmd/sluice uses %s any more", library)
		}
	}
}

// TestImportsCanFail shows what the table of layers refuses.
func TestImportsCanFail(t *testing.T) {
	for _, c := range []struct {
		dir, imports string
		found        int // an import of k8s.io is one, and to have it below is another
	}{
		{"lb", "time", 1}, {"affinity", module + "/lb", 1}, {"tcp", module + "/redirect", 1}, {"attic", "fmt", 1},
		{"cmd/sluice", module + "/" + talks, 1}, {"internal/flows/track", module + "/" + talks, 0},
		{"internal/testbed", module + "/lb", 1}, {"redirect", "k8s.io/api/core/v1", 2},
		{"lb", "net/netip", 0}, {"cmd/sluice", "k8s.io/api/core/v1", 0},
		{"lb", "sync/atomic", 1}, {"lb", module + "/affinity", 1}, {"lb", module + "/" + runs, 1},
		{runs, "sync/atomic", 0}, {runs, module + "/affinity", 0}, {runs, module + "/lb", 0},
		{"redirect", module + "/" + runs, 1}, {"cmd/sluice/internal/sources/kube", module + "/" + runs, 1},
		{"kernelmodes/nftables", module + "/" + runs, 1}, {"kernelmodes/queue", module + "/" + runs, 0},
	} {
		p := pkg{GOOS: "linux", ImportPath: module + "/" + c.dir, Imports: []string{c.imports}, Deps: []string{c.imports}}
		if found := checkImports(&repo{packages: []pkg{p}}); len(found) != c.found {
			t.Errorf("%s imports %s: found %q, want %d", c.dir, c.imports, found, c.found)
		}
	}
}

const requirementsWhy = "what only tests of the whole program and measurements need is a requirement of their own modules"

// e2e is the folder with the tests of the whole program.
const e2e = "cmd/sluice/internal/e2e"

// TestRequirementsCanFail shows what go.mod may require.
func TestRequirementsCanFail(t *testing.T) {
	const goMod = "module x\nrequire (\n\ta.com/linked v1.0.0\n\ta.com/windows v1.0.0\n\ta.com/tested v1.0.0\n" +
		"\ta.com/far v1.0.0 // indirect\n\ta.com/tool v1.0.0\n\ta.com/e2e v1.0.0\n)\nrequire a.com/link v1.0.0\n"
	r := &repo{
		fsys: fstest.MapFS{"go.mod": &fstest.MapFile{Data: []byte(goMod)}},
		packages: []pkg{
			{GOOS: "linux", ImportPath: module + "/cmd/sluice", Deps: []string{module + "/tcp"}},
			{GOOS: "windows", ImportPath: module + "/cmd/sluice", Imports: []string{"a.com/windows"}},
			{GOOS: "linux", ImportPath: module + "/tcp", Imports: []string{"a.com/linked/v1"}, TestImports: []string{"a.com/tested"}},
			{GOOS: "linux", ImportPath: module + "/deploy/tool", Imports: []string{"a.com/tool"}},
			{GOOS: "linux", ImportPath: module + "/" + e2e, Imports: []string{"a.com/e2e"}, XTestImports: []string{"a.com/e2e"}},
		},
	}
	want := []string{"go.mod:7: a.com/tool", "go.mod:8: a.com/e2e", "go.mod:10: a.com/link"}
	found := checkRequirements(r)
	if !slices.EqualFunc(found, want, strings.HasPrefix) {
		t.Errorf("found %q, want %q", found, want)
	}
}

var requirement = regexp.MustCompile(`^(?:require |\t)(\S+) v\S+$`) // and not indirect

// checkRequirements compares what go.mod requires directly with the imports of what cmd/sluice links and of tests
// of single packages.
func checkRequirements(r *repo) (found []string) {
	linked := map[string]bool{} // by platform and import path
	for _, p := range r.packages {
		if p.ImportPath == module+"/cmd/sluice" {
			for _, dep := range append(p.Deps, p.ImportPath) {
				linked[p.GOOS+" "+dep] = true
			}
		}
	}
	var imports []string
	for _, p := range r.packages {
		if linked[p.GOOS+" "+p.ImportPath] {
			imports = append(imports, p.Imports...)
		}
		if !under(p.ImportPath, []string{module + "/" + e2e, module + "/bench"}) {
			imports = append(imports, slices.Concat(p.TestImports, p.XTestImports)...)
		}
	}
	for i, line := range strings.Split(r.text("go.mod"), "\n") {
		m := requirement.FindStringSubmatch(line)
		if m != nil && !slices.ContainsFunc(imports, func(imp string) bool { return under(imp, m[1:]) }) {
			found = append(found, fmt.Sprintf("go.mod:%d: %s is neither linked by cmd/sluice nor used by a test of a package",
				i+1, m[1]))
		}
	}
	return found
}

// checkImports compares what every package imports with the table of layers.
func checkImports(r *repo) []string {
	var found []string
	for _, p := range r.packages {
		dir := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		layer, ok := layerOf(dir)
		if !ok {
			found = append(found, dir+": no rule says what this folder may import; add it to the layers with the reason")
			continue
		}
		from := fmt.Sprintf("%s (%s)", dir, p.GOOS)
		for _, imp := range p.Imports {
			if !layer.allows(imp, layer.theirs) || under(imp, layer.not) && imp != "net/netip" {
				found = append(found, fmt.Sprintf("%s imports %s: %s", from, imp, layer.why))
			}
		}
		for _, imp := range slices.Concat(p.TestImports, p.XTestImports) {
			if !layer.allows(imp, slices.Concat(layer.theirs, forTests)) && imp != module+"/internal/testbed" &&
				!under(strings.TrimPrefix(imp, module+"/"), layer.tests) {
				found = append(found, fmt.Sprintf("%s imports %s in a test: %s", from, imp, layer.why))
			}
		}
		for _, dep := range p.Deps {
			if dep != p.ImportPath && under(dep, layer.never) && !under(dep, []string{module}) {
				found = append(found, fmt.Sprintf("%s has %s below it: %s", from, dep, layer.why))
			}
		}
	}
	return found
}

// allows reports whether the layer may name imp, given the foreign packages it may use.
func (m layer) allows(imp string, theirs []string) bool {
	if imp == module || strings.HasPrefix(imp, module+"/") {
		dir := strings.TrimPrefix(strings.TrimPrefix(imp, module), "/")
		target, ok := layerOf(dir)
		return ok && (target.dir == m.dir || slices.Contains(m.ours, target.dir) ||
			slices.Contains(m.ours, "cmd") && under(dir, []string{"cmd"}))
	}
	if first, _, _ := strings.Cut(imp, "/"); !strings.Contains(first, ".") {
		return true // the standard library
	}
	return slices.Contains(theirs, "*") || under(imp, theirs)
}

// layerOf finds the layer with the longest folder that holds dir.
func layerOf(dir string) (layer, bool) {
	var best layer
	for _, m := range layers {
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
