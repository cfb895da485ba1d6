package manifest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// watching runs Watch on paths until the test ends.
type watching struct {
	t       *testing.T
	results chan Result
	last    Result
	stop    context.CancelFunc
	done    chan struct{}
}

// watch returns once Watch is known to be watching: a change made sooner would
// be found by its first look at the files and prove nothing. It adds a path of
// its own, whose only trace is a warning.
func watch(t *testing.T, l *Loader) *watching {
	t.Helper()
	armed := filepath.Join(t.TempDir(), "armed.yaml")
	l.Paths = append(l.Paths, armed)
	write(t, armed, "{apiVersion: v1, kind: Disarmed}\n")
	ctx, stop := context.WithCancel(t.Context())
	w := &watching{t: t, results: make(chan Result, 100), stop: stop, done: make(chan struct{})}
	w.last, _ = l.Load()
	go func() {
		defer close(w.done)
		l.Watch(ctx, func(r Result) { w.results <- r })
	}()
	t.Cleanup(func() {
		stop()
		<-w.done
	})
	write(t, armed, "{apiVersion: v1, kind: Armed}\n")
	w.wait("the watch to be armed", func(r Result) bool {
		return slices.ContainsFunc(r.Warnings, func(e *Error) bool { return strings.HasPrefix(e.Reason, "Armed") })
	})
	return w
}

// wait receives Results until one fits.
func (w *watching) wait(what string, fits func(Result) bool) {
	w.t.Helper()
	timeout := time.After(20 * time.Second)
	for !fits(w.last) {
		select {
		case w.last = <-w.results:
		case <-timeout:
			w.t.Fatalf("waited for %s; in force is %q with %v", what, served(w.last), w.last.Problems)
		}
	}
}

// until waits for a Result in which want is served and the problems hold each of
// the texts; with no texts there must be none.
func (w *watching) until(want string, problems ...string) Result {
	w.t.Helper()
	w.wait(fmt.Sprintf("%q with problems %q", want, problems), func(r Result) bool {
		if served(r) != want || len(r.Problems) != len(problems) {
			return false
		}
		for i, text := range problems {
			if !strings.Contains(r.Problems[i].Error(), text) {
				return false
			}
		}
		return true
	})
	return w.last
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) string {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// link makes a symbolic link, where the system lets us.
func link(t *testing.T, target, path string) {
	t.Helper()
	err := os.Symlink(target, path)
	if err == nil {
		_, err = os.Stat(path) // wine makes the link and does not follow it
	}
	if err != nil {
		if runtime.GOOS == "windows" {
			t.Skipf("SKIPPED, NOT TESTED: this account may not make symbolic links, or they are not followed: %v", err)
		}
		t.Fatal(err)
	}
}

// never is a rescan that comes too late to help: what these tests see was told
// by the operating system.
const never = time.Hour

func TestWatchFolder(t *testing.T) {
	dir := mkdir(t, filepath.Join(t.TempDir(), "dir"))
	path := filepath.Join(dir, "a.yaml")
	write(t, path, service("a", "10.96.0.1"))
	w := watch(t, &Loader{Paths: []string{dir}, Rescan: never})
	w.until("a=10.96.0.1")

	write(t, path, service("a", "10.96.0.2")) // in place
	w.until("a=10.96.0.2")

	write(t, filepath.Join(dir, ".a.yaml.tmp"), service("a", "10.96.0.3"))
	rename(t, filepath.Join(dir, ".a.yaml.tmp"), path)
	w.until("a=10.96.0.3")

	write(t, filepath.Join(dir, "b.yaml"), service("b", "10.96.0.4")) // another file
	w.until("a=10.96.0.3 b=10.96.0.4")

	write(t, path, "a: [\n")
	w.until("a=10.96.0.3 b=10.96.0.4", "a.yaml:2: not valid YAML")
	write(t, path, service("a", "10.96.0.5"))
	w.until("a=10.96.0.5 b=10.96.0.4")

	remove(t, path)
	w.until("b=10.96.0.4")
	rename(t, filepath.Join(dir, "b.yaml"), filepath.Join(dir, "b.txt"))
	w.until("")
	rename(t, filepath.Join(dir, "b.txt"), filepath.Join(dir, "c.yaml"))
	w.until("b=10.96.0.4")

	// The folder itself goes, which drops nothing, and another takes its place.
	rename(t, dir, dir+".old")
	w.until("b=10.96.0.4", "dir: cannot be read")
	other := mkdir(t, dir+".new")
	write(t, filepath.Join(other, "d.yaml"), service("d", "10.96.0.6"))
	rename(t, other, dir)
	w.until("d=10.96.0.6")
	write(t, filepath.Join(dir, "d.yaml"), service("d", "10.96.0.7"))
	w.until("d=10.96.0.7")

	// Again, too fast for the absence to be seen: the watch must follow.
	write(t, filepath.Join(mkdir(t, other), "d.yaml"), service("d", "10.96.0.8"))
	rename(t, dir, dir+".older")
	rename(t, other, dir)
	w.until("d=10.96.0.8")
	write(t, filepath.Join(dir, "d.yaml"), service("d", "10.96.0.9"))
	w.until("d=10.96.0.9")
}

func TestWatchFile(t *testing.T) {
	base := t.TempDir()
	path := filepath.Join(base, "not", "yet", "there.yaml")
	w := watch(t, &Loader{Paths: []string{path}, Rescan: never})
	w.until("", "there.yaml: cannot be read")
	mkdir(t, filepath.Dir(path))
	write(t, path, service("a", "10.96.0.1"))
	w.until("a=10.96.0.1")
	write(t, path+"~", service("a", "10.96.0.2"))
	rename(t, path+"~", path)
	w.until("a=10.96.0.2")
	remove(t, path)
	w.until("a=10.96.0.2", "there.yaml: cannot be read")
	write(t, path, service("a", "10.96.0.3"))
	w.until("a=10.96.0.3")
}

// TestWatchConfigMap replays what kubelet does to a mounted ConfigMap: the
// files are links through ..data, which is swapped for a link to a new folder.
func TestWatchConfigMap(t *testing.T) {
	dir := mkdir(t, filepath.Join(t.TempDir(), "mount"))
	publish := func(version string, files map[string]string) {
		t.Helper()
		mkdir(t, filepath.Join(dir, version))
		for name, text := range files {
			write(t, filepath.Join(dir, version, name), text)
		}
		link(t, version, filepath.Join(dir, "..data_tmp"))
		rename(t, filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
	}
	publish("..1", map[string]string{"a.yaml": service("a", "10.96.0.1"), "b.yaml": service("b", "10.96.0.2")})
	link(t, filepath.Join("..data", "a.yaml"), filepath.Join(dir, "a.yaml"))
	link(t, filepath.Join("..data", "b.yaml"), filepath.Join(dir, "b.yaml"))
	w := watch(t, &Loader{Paths: []string{dir}, Rescan: never})
	w.until("a=10.96.0.1 b=10.96.0.2")

	publish("..2", map[string]string{"a.yaml": service("a", "10.96.0.3"), "b.yaml": service("b", "10.96.0.4")})
	remove(t, filepath.Join(dir, "..1"))
	w.until("a=10.96.0.3 b=10.96.0.4")

	// A key is removed: its link leads nowhere until it is removed as well.
	publish("..3", map[string]string{"a.yaml": service("a", "10.96.0.5")})
	w.until("a=10.96.0.5 b=10.96.0.4", "b.yaml: is a symbolic link to nothing")
	remove(t, filepath.Join(dir, "b.yaml"))
	w.until("a=10.96.0.5")

	// A file that is mounted by itself, seen from elsewhere.
	outside := filepath.Join(t.TempDir(), "outside.yaml")
	link(t, filepath.Join(dir, "a.yaml"), outside)
	w = watch(t, &Loader{Paths: []string{outside}, Rescan: never})
	publish("..4", map[string]string{"a.yaml": service("a", "10.96.0.6")})
	w.until("a=10.96.0.6")
	write(t, filepath.Join(dir, "..4", "a.yaml"), service("a", "10.96.0.7"))
	w.until("a=10.96.0.7")
}

// TestWatchLinkedFolder: the path given leads through a link that is swapped.
func TestWatchLinkedFolder(t *testing.T) {
	base := t.TempDir()
	for version, ip := range map[string]string{"1": "10.96.0.1", "2": "10.96.0.2"} {
		write(t, filepath.Join(mkdir(t, filepath.Join(base, version, "manifests")), "a.yaml"), service("a", ip))
	}
	link(t, "1", filepath.Join(base, "current"))
	w := watch(t, &Loader{Paths: []string{filepath.Join(base, "current", "manifests")}, Rescan: never})
	w.until("a=10.96.0.1")
	link(t, "2", filepath.Join(base, "next"))
	rename(t, filepath.Join(base, "next"), filepath.Join(base, "current"))
	w.until("a=10.96.0.2")
	write(t, filepath.Join(base, "2", "manifests", "a.yaml"), service("a", "10.96.0.3"))
	w.until("a=10.96.0.3")
}

// TestWatchNewLink: a link that appears brings what it points to under watch.
func TestWatchNewLink(t *testing.T) {
	dir, target := t.TempDir(), filepath.Join(t.TempDir(), "target")
	write(t, target, service("a", "10.96.0.1"))
	w := watch(t, &Loader{Paths: []string{dir}, Rescan: never})
	link(t, target, filepath.Join(dir, "a.yaml"))
	w.until("a=10.96.0.1")
	write(t, target, service("a", "10.96.0.2"))
	w.until("a=10.96.0.2")
}

// TestWatchRescan makes a change that causes no event in any watched directory:
// the folder above their parent is exchanged.
func TestWatchRescan(t *testing.T) {
	base := t.TempDir()
	for version, ip := range map[string]string{"top": "10.96.0.1", "other": "10.96.0.2"} {
		write(t, filepath.Join(mkdir(t, filepath.Join(base, version, "parent", "dir")), "a.yaml"), service("a", ip))
	}
	w := watch(t, &Loader{Paths: []string{filepath.Join(base, "top", "parent", "dir")}, Rescan: 50 * time.Millisecond})
	rename(t, filepath.Join(base, "top"), filepath.Join(base, "old"))
	w.until("a=10.96.0.1", "cannot be read")
	rename(t, filepath.Join(base, "other"), filepath.Join(base, "top"))
	w.until("a=10.96.0.2")
}

// TestWatchManyFiles: a folder that never rests is still read, and ends up right.
func TestWatchManyFiles(t *testing.T) {
	dir := t.TempDir()
	w := watch(t, &Loader{Paths: []string{dir}, Rescan: never})
	var want []string
	for i := range 300 {
		name := fmt.Sprintf("svc-%03d", i)
		ip := fmt.Sprintf("10.96.%d.%d", i/250, i%250+1)
		write(t, filepath.Join(dir, name+".yaml"), service(name, ip))
		want = append(want, name+"="+ip)
	}
	w.until(strings.Join(want, " "))
}

// TestWatchEnds holds that Watch leaves nothing behind.
func TestWatchEnds(t *testing.T) {
	dir := t.TempDir()
	before := runtime.NumGoroutine()
	for range 5 {
		w := watch(t, &Loader{Paths: []string{dir}})
		write(t, filepath.Join(dir, "a.yaml"), service("a", "10.96.0.1"))
		w.until("a=10.96.0.1")
		w.stop()
		<-w.done
		remove(t, filepath.Join(dir, "a.yaml"))
	}
	// The runtime counts a goroutine until shortly after its last statement.
	deadline := time.Now().Add(10 * time.Second)
	for runtime.NumGoroutine() > before {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<16)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
		runtime.Gosched()
	}
}

// TestWatchLargeFile: while a large file is decoded, what others say is applied.
func TestWatchLargeFile(t *testing.T) {
	dir := t.TempDir()
	big, small := filepath.Join(dir, "big.yaml"), filepath.Join(dir, "small.yaml")
	w := watch(t, &Loader{Paths: []string{dir}, Rescan: never})
	var text strings.Builder
	text.WriteString("apiVersion: v1\nkind: Service\nmetadata: {name: big}\nspec:\n  clusterIP: 10.96.0.2\n  ports:\n")
	for p := range 65_535 {
		fmt.Fprintf(&text, "  - {name: p%d, port: %d}\n", p, p+1)
	}
	replace := func(path, text string) {
		write(t, path+"~", text)
		rename(t, path+"~", path)
	}
	replace(big, text.String())
	replace(small, service("a", "10.96.0.1"))
	w.until("a=10.96.0.1")
	w.until("a=10.96.0.1 big=10.96.0.2")
	replace(big, service("big", "10.96.0.3"))
	w.until("a=10.96.0.1 big=10.96.0.3")
	replace(big, text.String())
	remove(t, big) // before it is decoded
	w.until("a=10.96.0.1")
}
