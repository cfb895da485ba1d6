package manifest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kube"
	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// served lists the cluster IP of each Service in force: "a=10.96.0.1 b=...".
func served(r Result) string {
	var out []string
	for s := range r.Objects.Services.All() {
		out = append(out, s.Name+"="+s.Spec.ClusterIP)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// errorsOf lists problems with the folder cut off.
func errorsOf(list []*Error, dir string) []string {
	var out []string
	for _, e := range list {
		out = append(out, strings.ReplaceAll(e.Error(), dir+string(filepath.Separator), ""))
	}
	return out
}

// expect loads and compares what is served and what is reported.
func expect(t *testing.T, l *Loader, dir, wantServed string, wantProblems ...string) Result {
	t.Helper()
	r, _ := l.Load()
	if got := served(r); got != wantServed {
		t.Errorf("in force: %q, want %q", got, wantServed)
	}
	if diff := cmp.Diff(wantProblems, errorsOf(r.Problems, dir)); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	return r
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

func TestLoadFolder(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "b.yaml"), service("b", "10.96.0.2"))
	write(t, filepath.Join(dir, "a.json"), strings.Replace(serviceJSON, "web", "a", 1))
	write(t, filepath.Join(dir, "c.yml"), slice("a", "10.0.0.1")+"---\n"+slice("b", "10.0.0.2"))
	write(t, filepath.Join(dir, ".hidden.yaml"), "broken: [")
	write(t, filepath.Join(dir, "README.md"), "# not a manifest")
	if err := os.Mkdir(filepath.Join(dir, "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "below", "d.yaml"), "broken: [")
	single := filepath.Join(t.TempDir(), "extra")
	write(t, single, service("extra", "10.96.0.9"))

	// A file that is also in a folder given counts once.
	l := Loader{Paths: []string{dir, single, filepath.Join(dir, "b.yaml")}}
	r := expect(t, &l, dir, "a=10.96.0.1 b=10.96.0.2 extra=10.96.0.9")
	if r.Files != 4 || r.Objects.Len() != 5 {
		t.Errorf("%d files, %d objects; want 4 and 5", r.Files, r.Objects.Len())
	}
	// A Service and its slice find each other across files.
	services := new(kube.Converter).Convert(r.Objects, kube.Options{}).Services.AppendTo(nil)
	if len(services) != 3 || len(services[0].Backends) != 1 || services[0].Backends[0].Addr.String() != "10.0.0.1:8080" {
		t.Errorf("services: %v", services)
	}
	if _, changed := l.Load(); changed {
		t.Error("nothing changed, but the Result did")
	}
}

func TestUnreadableFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), service("a", "10.96.0.1"))
	folder := filepath.Join(dir, "b.yaml")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(dir, "d.yaml")
	write(t, big, "")
	if err := os.Truncate(big, maxFileSize+1); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"b.yaml: is a folder, and folders in a folder are not read; rename or remove it",
		"d.yaml: is larger than 64 MiB; split it",
	}
	l := Loader{Paths: []string{dir}}
	expect(t, &l, dir, "a=10.96.0.1", want...)
	if _, changed := l.Load(); changed {
		t.Error("the same problems are a change")
	}

	// What was good is kept while it cannot be read, and the reports end when it can.
	remove(t, folder)
	write(t, folder, service("b", "10.96.0.2"))
	remove(t, big)
	expect(t, &l, dir, "a=10.96.0.1 b=10.96.0.2")
	remove(t, folder)
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	expect(t, &l, dir, "a=10.96.0.1 b=10.96.0.2", want[0])

	// The very file comes back, as old as it was.
	path := filepath.Join(dir, "a.yaml")
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	remove(t, folder)
	l.Load()
	rename(t, path, path+".away")
	mkdir(t, path)
	expect(t, &l, dir, "a=10.96.0.1", "a.yaml"+strings.TrimPrefix(want[0], "b.yaml"))
	remove(t, path)
	rename(t, path+".away", path)
	expect(t, &l, dir, "a=10.96.0.1")
}

func TestBrokenFileKeepsItsObjects(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	write(t, path, service("a", "10.96.0.1")+"---\n"+service("b", "10.96.0.2"))
	write(t, filepath.Join(dir, "z.yaml"), service("z", "10.96.0.9"))
	l := Loader{Paths: []string{dir}}
	expect(t, &l, dir, "a=10.96.0.1 b=10.96.0.2 z=10.96.0.9")

	// b is changed and a broken: neither takes effect, while another file does.
	write(t, path, strings.Replace(service("a", "10.96.0.1"), "port: 80", "port: 0", 1)+"---\n"+service("b", "10.96.0.3"))
	write(t, filepath.Join(dir, "z.yaml"), service("z", "10.96.0.8"))
	broken := expect(t, &l, dir, "a=10.96.0.1 b=10.96.0.2 z=10.96.0.8",
		"a.yaml:8: Service default/a: spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive")
	if broken.Rejected != 1 || broken.Lost || len(l.Applied()) != 2 {
		t.Errorf("%d rejected, applied are %v", broken.Rejected, l.Applied())
	}
	expect(t, &l, dir, "a=10.96.0.1 b=10.96.0.2 z=10.96.0.8", errorsOf(broken.Problems, dir)...)

	write(t, path, service("b", "10.96.0.3"))
	expect(t, &l, dir, "b=10.96.0.3 z=10.96.0.8")
	remove(t, path)
	expect(t, &l, dir, "z=10.96.0.8")
}

// TestMissingPathKeepsAll: it is the file in a folder that may go, not the path
// that was asked for.
func TestMissingPathKeepsAll(t *testing.T) {
	base := t.TempDir()
	dir, single := filepath.Join(base, "dir"), filepath.Join(base, "single.yaml")
	const gone = ": cannot be read: no such file or directory; restore it, let Sluice read it, or correct the path"
	l := Loader{Paths: []string{dir, single}}
	if filepath.Separator == '/' { // elsewhere the system words it otherwise
		expect(t, &l, base, "", "dir"+gone, "single.yaml"+gone)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "a.yaml"), service("a", "10.96.0.1"))
	write(t, single, service("s", "10.96.0.2"))
	expect(t, &l, base, "a=10.96.0.1 s=10.96.0.2")
	remove(t, dir)
	remove(t, single)
	r, changed := l.Load()
	if got := served(r); got != "a=10.96.0.1 s=10.96.0.2" || len(r.Problems) != 2 || !changed {
		t.Errorf("in force %q, problems %v", got, r.Problems)
	}
	if _, _, again := l.read(quiet, l.order); again != 0 {
		t.Error("what is missing is asked for again and again")
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, single, service("s", "10.96.0.3"))
	expect(t, &l, base, "s=10.96.0.3")
}

// TestSameTimeAndSize: a second write within the clock's step leaves no trace in
// the file's time, nor in its size.
func TestSameTimeAndSize(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	for i, text := range []string{service("a", "10.96.0.1"), service("a", "10.96.0.2")} {
		write(t, path, text)
		stamp := time.Now().Truncate(time.Second) // so that the step is a long one
		if err := os.Chtimes(path, stamp, stamp); err != nil {
			t.Fatal(err)
		}
		l := Loader{Paths: []string{dir}}
		expect(t, &l, dir, fmt.Sprintf("a=10.96.0.%d", i+1))
		write(t, path, service("a", "10.96.0.3"))
		if err := os.Chtimes(path, stamp, stamp); err != nil {
			t.Fatal(err)
		}
		expect(t, &l, dir, "a=10.96.0.3")
	}
}

// TestUnchangedIsNotRead holds that an old file is told by its stat alone.
func TestUnchangedIsNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	write(t, path, service("a", "10.96.0.1"))
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	l := Loader{Paths: []string{path}}
	first, _ := l.Load()
	if dirty, again := l.order[0].refresh(new(pass)); dirty || again != 0 {
		t.Errorf("dirty %v, again %v of an unchanged file", dirty, again)
	}
	if err := os.Chtimes(path, old, old.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if dirty, _ := l.order[0].refresh(new(pass)); !dirty {
		t.Error("a file with another time was not read")
	}
	// The same text gives the same objects, which is no change.
	if second, changed := l.Load(); changed || !lists.Equal(second.Objects.Services, first.Objects.Services) {
		t.Error("a touched file counts as a change")
	}
}

// TestOnlyChangedDocumentsAreParsed: the objects of the others stay the same
// objects, though their lines move.
func TestOnlyChangedDocumentsAreParsed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	write(t, path, service("a", "10.96.0.1")+"---\n"+service("b", "10.96.0.2")+"---\n"+service("c", "10.96.0.3"))
	l := Loader{Paths: []string{path}}
	first, _ := l.Load()
	write(t, path, service("a", "10.96.0.4")+"\n\n---\n"+service("b", "10.96.0.2")+"---\n"+service("c", "10.96.0.3"))
	second, _ := l.Load()
	was, is := slices.Collect(first.Objects.Services.All()), slices.Collect(second.Objects.Services.All())
	for i, same := range []bool{false, true, true} {
		if got := was[i] == is[i]; got != same {
			t.Errorf("document %d: same object %v, want %v", i, got, same)
		}
	}
	if line := l.order[0].good.objects[1].line(); line != 13 {
		t.Errorf("the second object moved to line 13, not %d", line)
	}
}

func TestConflictsAcrossFiles(t *testing.T) {
	dir := t.TempDir()
	a, b, c := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml"), filepath.Join(dir, "c.yaml")
	write(t, b, "# b\n"+service("web", "10.96.0.1"))
	write(t, c, service("api", "10.96.0.2")+"---\n"+service("web", "10.96.0.3"))
	l := Loader{Paths: []string{dir}}
	const twice = "c.yaml:11: Service default/web is already defined at b.yaml:2; remove one of the two"
	expect(t, &l, dir, "web=10.96.0.1", twice)

	// The one in force keeps its place against a file that comes before it, and
	// both places are named.
	write(t, a, service("first", "10.96.0.1"))
	const taken = "a.yaml:1: Service default/first: TCP 10.96.0.1:80 already belongs to Service default/web at b.yaml:2; give one of the two another"
	expect(t, &l, dir, "web=10.96.0.1", taken, twice)

	// Once it gives way the others follow, with no change of their own.
	write(t, b, service("b", "10.96.0.4"))
	expect(t, &l, dir, "api=10.96.0.2 b=10.96.0.4 first=10.96.0.1 web=10.96.0.3")

	// A file that begins to contradict keeps what it had.
	write(t, b, service("b", "10.96.0.5")+"---\n"+service("web", "10.96.0.6"))
	expect(t, &l, dir, "api=10.96.0.2 b=10.96.0.4 first=10.96.0.1 web=10.96.0.3",
		"b.yaml:11: Service default/web is already defined at c.yaml:11; remove one of the two")

	// Files may exchange what they hold.
	write(t, a, service("b", "10.96.0.4"))
	write(t, b, service("first", "10.96.0.1"))
	expect(t, &l, dir, "api=10.96.0.2 b=10.96.0.4 first=10.96.0.1 web=10.96.0.3")
}

// TestConflictsOfNodePorts: they are told apart by protocol, and not by cluster IP
// or family. Those for health checks are TCP.
func TestConflictsOfNodePorts(t *testing.T) {
	dir := t.TempDir()
	a, b, c := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml"), filepath.Join(dir, "c.yaml")
	udp := strings.Replace(nodePort("udp", "10.96.0.3", 30080), "port: 80\n", "port: 80\n    protocol: UDP\n", 1)
	health := strings.Replace(nodePort("health", "10.96.0.4", 30081), "NodePort", "LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 30080", 1)
	write(t, b, "# b\n"+nodePort("web", "10.96.0.1", 30080))
	write(t, c, nodePort("api", "fd00::1", 30080)+"---\n"+udp)
	l := Loader{Paths: []string{dir}}
	expect(t, &l, dir, "web=10.96.0.1",
		"c.yaml:1: Service default/api: TCP node port 30080 already belongs to Service default/web at b.yaml:2; give one of the two another")

	// The one in force keeps its place; UDP is another matter.
	write(t, a, health)
	write(t, c, udp)
	expect(t, &l, dir, "udp=10.96.0.3 web=10.96.0.1",
		"a.yaml:1: Service default/health: TCP node port 30080 already belongs to Service default/web at b.yaml:2; give one of the two another")

	write(t, b, nodePort("web", "10.96.0.1", 30082))
	expect(t, &l, dir, "health=10.96.0.4 udp=10.96.0.3 web=10.96.0.1")

	// Two Services exchange their ports, in one step; then one has both.
	write(t, a, strings.ReplaceAll(health, "30080", "30082"))
	write(t, b, nodePort("web", "10.96.0.1", 30080))
	expect(t, &l, dir, "health=10.96.0.4 udp=10.96.0.3 web=10.96.0.1")
	write(t, b, nodePort("web", "10.96.0.5", 30081))
	expect(t, &l, dir, "health=10.96.0.4 udp=10.96.0.3 web=10.96.0.1",
		"b.yaml:1: Service default/web: TCP node port 30081 already belongs to Service default/health at a.yaml:1; give one of the two another")
}

// TestNodes: a Node is in force, kept and given up as a Service is.
func TestNodes(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	l := Loader{Paths: []string{dir}}
	facts := func(wantChange bool, wantCIDRs string, problems ...string) {
		t.Helper()
		r, changed := l.Load()
		got := new(kube.Converter).Convert(r.Objects, kube.Options{Facts: kube.Facts{NodeName: "n1"}}).Facts
		if cidrs := fmt.Sprint(got.PodCIDRs, got.Addresses); cidrs != wantCIDRs || changed != wantChange {
			t.Errorf("in force: %s, changed %v; want %s, %v", cidrs, changed, wantCIDRs, wantChange)
		}
		if diff := cmp.Diff(problems, errorsOf(r.Problems, dir)); diff != "" {
			t.Errorf("problems (-want +got):\n%s", diff)
		}
	}
	write(t, a, node("n1", "10.1.0.0/24", "10.0.0.1"))
	facts(true, "[10.1.0.0/24] [10.0.0.1]")
	facts(false, "[10.1.0.0/24] [10.0.0.1]")
	write(t, a, node("n1", "10.2.0.0/24", "10.0.0.1"))
	facts(true, "[10.2.0.0/24] [10.0.0.1]")

	// Broken, it stays what it was.
	write(t, a, node("n1", "10.3.0.0/24", "10.0.0"))
	facts(true, "[10.2.0.0/24] [10.0.0.1]",
		`a.yaml:10: Node n1: status.addresses[0].address: Invalid value: "10.0.0": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)`)

	// So it does when another file has a Node of its name, until it is gone.
	write(t, a, node("n1", "10.4.0.0/24", "10.0.0.4"))
	write(t, b, node("n1", "10.5.0.0/24", "10.0.0.5"))
	facts(true, "[10.4.0.0/24] [10.0.0.4]", "b.yaml:1: Node n1 is already defined at a.yaml:1; remove one of the two")
	remove(t, a)
	facts(true, "[10.5.0.0/24] [10.0.0.5]")
	remove(t, b)
	facts(true, "[] []")
}

// TestConflictsAtRandom changes files at random and holds the invariants: what
// is in force never contradicts itself, each file is in force as a whole, old or
// new, and a set of files without contradictions is in force as it stands.
func TestConflictsAtRandom(t *testing.T) {
	testbed.Sequential(t)
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 1))
		l := Loader{loaded: true}
		texts := make(map[*file]string)
		for range 60 {
			var dirty []*file
			if len(l.order) < 2 || len(l.order) < 6 && random.IntN(4) == 0 {
				l.order = append(l.order, &file{path: fmt.Sprintf("f%d.yaml", random.IntN(1e6))})
			}
			for _, f := range l.order {
				if random.IntN(2) == 0 && texts[f] != "" {
					continue
				}
				var b strings.Builder
				for range 1 + random.IntN(2) {
					name, ip := fmt.Sprintf("s%d", random.IntN(10)), fmt.Sprintf("10.96.0.%d", 1+random.IntN(10))
					text := service(name, ip)
					if random.IntN(3) == 0 {
						text = nodePort(name, ip, 30000+random.IntN(4))
					}
					fmt.Fprintf(&b, "---\n%s", text)
				}
				texts[f] = b.String()
				f.next = f.parse([]byte(texts[f]))
				dirty = append(dirty, f)
			}
			if len(l.order) > 2 && random.IntN(8) == 0 {
				l.removed = append(l.removed, l.order[1])
				l.order = slices.Delete(l.order, 1, 2)
				dirty = slices.DeleteFunc(dirty, func(f *file) bool { return f == l.removed[0] })
			}
			before := make(map[*file]*version)
			for _, f := range l.order {
				before[f] = f.good
			}
			l.resolve(dirty)
			owners := make(map[claim]*file)
			clean := true
			for _, f := range l.order {
				if f.good != before[f] && f.good != f.next {
					t.Fatalf("seed %d: %s is in force as neither what it was nor what it is", seed, f.path)
				}
				if f.good != f.next {
					clean = false
					if len(f.conflicts)+len(f.next.problems) == 0 {
						t.Fatalf("seed %d: %s is held back without a reason", seed, f.path)
					}
				}
				if f.good == nil {
					continue
				}
				for _, o := range f.good.objects {
					for _, c := range o.claims {
						if owners[c] != nil {
							t.Fatalf("seed %d: %v belongs to %s and %s", seed, c, owners[c].path, f.path)
						}
						owners[c] = f
					}
				}
			}
			if held := l.held; !sameFiles(held, owners) {
				t.Fatalf("seed %d: remembers that %v is held, want %v", seed, held, owners)
			}
			if r := l.collect(); clean != (len(r.Problems) == 0) {
				t.Fatalf("seed %d: all in force %v, problems %v", seed, clean, r.Problems)
			}
		}
	}
}

// sameFiles reports whether the claims are those of the same files.
func sameFiles(held map[claim]placed, want map[claim]*file) bool {
	if len(held) != len(want) {
		return false
	}
	for c, o := range held {
		if want[c] != o.file {
			return false
		}
	}
	return true
}

// TestNothingToRead: a folder without a manifest, and files that are named amiss, are worth a warning.
func TestNothingToRead(t *testing.T) {
	dir := t.TempDir()
	l := Loader{Paths: []string{dir}}
	warned := func(want ...string) {
		t.Helper()
		r, _ := l.Load()
		if len(r.Warnings) != len(want) {
			t.Fatalf("warnings %v, want %q", r.Warnings, want)
		}
		for i, text := range want {
			if !strings.Contains(r.Warnings[i].Error(), text) {
				t.Errorf("warning %q, want %q", r.Warnings[i], text)
			}
		}
	}
	warned("no manifest in this folder")
	for _, name := range []string{"web.yaml.bak", "web.yml.txt", ".hidden.yaml"} {
		write(t, filepath.Join(dir, name), service("a", "10.96.0.1"))
	}
	warned("not read: web.yaml.bak, web.yml.txt")
	write(t, filepath.Join(dir, "a.yaml"), service("a", "10.96.0.1"))
	warned("web.yml.txt: is not read")
}
