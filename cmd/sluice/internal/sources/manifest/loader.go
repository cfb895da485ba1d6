package manifest

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kube"
	"github.com/sluice-lb/sluice/internal/lists"
)

// startPatience is how long the first Load waits for files that are being written.
const startPatience = 2 * time.Second

// Loader reads manifests and remembers the last good state of each file. Its
// methods must not be called concurrently, but for Applied.
type Loader struct {
	// Paths are files, of any name, and folders, of which the files *.yaml,
	// *.yml and *.json are read, without those in folders below and without
	// hidden ones. Symbolic links are followed. Not to be changed after the
	// first Load.
	Paths []string

	// Rescan is how often Watch looks at every file, in case the operating
	// system lost an event; 0 means 10 s. It costs a stat a file.
	Rescan time.Duration

	mu       sync.Mutex // guards which files there are, and what of them is applied: for Applied
	roots    []root
	files    map[string]*file // by absolute path
	order    []*file          // of the files: by path, then by name
	removed  []*file          // of the files: those that have gone since resolve
	held     map[claim]placed // what is applied
	disputed bool             // a file is not applied because it conflicts with another
	result   Result
	services []*corev1.Service            // memory for the next collect
	slices   []*discoveryv1.EndpointSlice // so
	loaded   bool
	apart    *apart // of Watch
	wake     wake   // there is something new of files
	watchErr *Error // why Watch may notice changes late
}

// root is one of Paths.
type root struct {
	path    string
	entries []entry // when it could be read last
	unread  reports // what it has that is not read, though that may be meant
	problem *Error  // why it cannot be read
}

// entry is a file that a root leads to.
type entry struct {
	path string
	link bool
}

// Load reads what changed since the last call and returns what is applied now. changed reports whether that differs
// from the last Result; it is true the first time. The first call waits a moment for files that are being written.
// Problems are in the Result: they never prevent the rest from loading.
func (l *Loader) Load() (result Result, changed bool) {
	l.list()
	rest := quiet
	if l.loaded {
		rest = 0
	}
	for until := time.Now().Add(startPatience); ; l.list() {
		result, changed, again := l.read(rest, l.order)
		if rest == 0 || again == 0 {
			return result, changed
		}
		select { // the file system tells of no writer that closes a file
		case <-l.wake:
		case <-time.After(again):
		}
		if time.Now().After(until) {
			rest = 0
		}
		l.loaded = false // of a first call
	}
}

// read reads those of the files again that changed; rest and again are those of file.refresh.
func (l *Loader) read(rest time.Duration, files []*file) (result Result, changed bool, again time.Duration) {
	states := make([]struct {
		dirty bool
		again time.Duration
	}, len(files))
	p := &pass{quiet: rest}
	inParallel(len(files), func(i int) {
		if !files[i].frozen {
			states[i].dirty, states[i].again = files[i].refresh(p)
		}
	})
	var dirty []*file
	for i, f := range files {
		s := &states[i]
		if s.dirty {
			dirty = append(dirty, f)
		}
		if s.again != 0 && (again == 0 || s.again < again) {
			again = s.again
		}
	}
	if len(dirty) > 0 || len(l.removed) > 0 {
		l.resolve(dirty)
	}
	result = l.collect()
	changed = !l.loaded || !equal(result, l.result)
	l.result, l.loaded = result, true
	return result, changed, again
}

// inParallel calls do with each number below n, on as many goroutines as there are cores: more
// Go processors would share them with the collector. A single call needs no goroutine, whose stack would have to grow.
func inParallel(n int, do func(i int)) {
	if n == 1 {
		do(0)
		return
	}
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(n, runtime.NumCPU()) {
		workers.Go(func() {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				do(i - 1)
			}
		})
	}
	workers.Wait()
}

// begin prepares the first Load or Watch.
func (l *Loader) begin() {
	if l.roots != nil {
		return
	}
	l.files, l.wake = make(map[string]*file), make(wake, 1)
	for _, path := range l.Paths {
		l.roots = append(l.roots, root{path: path})
	}
}

// list looks up the files of all paths.
func (l *Loader) list() {
	l.begin()
	var order []*file
	seen := make(map[string]bool)
	for i := range l.roots {
		r := &l.roots[i]
		if entries, unread, err := listEntries(r.path); err == nil {
			r.entries, r.unread, r.problem = entries, unread, nil
		} else {
			r.problem = &Error{File: r.path, Kind: Unreadable, Reason: fmt.Sprintf(
				"cannot be read: %v; restore it, let Sluice read it, or correct the path", cause(err))}
		}
		for _, e := range r.entries {
			key := e.path
			if absolute, err := filepath.Abs(key); err == nil {
				key = absolute
			}
			if seen[key] {
				continue // a folder and a file in it may both be given
			}
			seen[key] = true
			f := l.files[key]
			if f == nil {
				f = &file{path: e.path, wake: l.wake}
				l.files[key] = f
			}
			f.link, f.frozen, f.apart = e.link, r.problem != nil, l.apart
			order = append(order, f)
		}
	}
	for key, f := range l.files {
		if !seen[key] {
			delete(l.files, key)
			l.removed = append(l.removed, f)
		}
	}
	l.mu.Lock()
	l.order = order
	l.mu.Unlock()
}

// Applied returns the absolute paths of the files that objects are applied of. It may be called from anywhere.
func (l *Loader) Applied() (paths []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.order {
		if f.good == nil || len(f.good.objects) == 0 {
			continue
		}
		path, err := filepath.Abs(f.path)
		if err != nil {
			path = f.path
		}
		paths = append(paths, path)
	}
	return paths
}

// listEntries returns the manifests that path leads to, in the order of names, and what is not read there.
func listEntries(path string) (entries []entry, unread reports, err error) {
	stat, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !stat.IsDir() {
		return []entry{{path: path, link: true}}, nil, nil
	}
	all, err := os.ReadDir(path)
	if err != nil {
		return nil, nil, err
	}
	var others []string
	for _, e := range all {
		name := e.Name()
		switch {
		case isManifest(name):
			entries = append(entries, entry{filepath.Join(path, name), e.Type()&fs.ModeSymlink != 0})
			continue
		case strings.HasPrefix(name, ".") || e.IsDir():
			continue
		case misnamed(name):
			unread.add(&Error{File: filepath.Join(path, name), Kind: Unread,
				Reason: "is not read: only *.yaml, *.yml and *.json are; rename it"})
		}
		others = append(others, name)
	}
	if len(entries) == 0 {
		const few = 5
		reason := "no manifest in this folder, so nothing of it is served: put files *.yaml, *.yml or *.json into it"
		if len(others) > 0 {
			reason += "; not read: " + strings.Join(others[:min(few, len(others))], ", ")
		}
		if more := len(others) - few; more > 0 {
			reason += fmt.Sprintf(" and %d more", more)
		}
		unread = reports{{File: path, Kind: Unread, Reason: reason}}
	}
	return entries, unread, nil
}

// misnamed reports whether the name of a file that is not read looks like that of a manifest: web.yaml.txt, web.YML.
func misnamed(name string) bool {
	name = strings.ToLower(name)
	return isManifest(name) || isManifest(strings.TrimSuffix(name, ".txt"))
}

// isManifest reports whether an entry of a folder is read, by its name.
func isManifest(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return !strings.HasPrefix(name, ".")
	}
	return false
}

// resolve decides which version of each file is applied, now that the dirty ones have
// been read: the present one if it has no problem and contradicts no other file, the last
// good one otherwise. Of two files that claim the same, the one that had it applied keeps
// it, or else the first in order. They are judged together, so objects can move from
// one file to another, even cross over, in one step.
func (l *Loader) resolve(dirty []*file) {
	judged := l.order
	if !l.disputed { // nearly always: then the others stay as they are
		judged = slices.DeleteFunc(dirty, func(f *file) bool { return f.good != nil && f.trial() == f.good })
	}
	trial := make(map[*file]*version, len(judged))
	for _, f := range l.removed {
		trial[f] = nil
	}
	claims := 0
	for _, f := range judged {
		f.conflicts = nil
		if trial[f] = f.trial(); trial[f] != nil {
			claims += trial[f].claims
		}
	}
	l.disputed = false
	var owners map[claim]placed // as judged
	for {
		owners = make(map[claim]placed, claims)
		losers := make(map[*file]bool)
		for _, f := range judged {
			for c, winner := range trial[f].owners() {
				loser, taken := owners[c]
				held, isHeld := l.held[c]
				if _, open := trial[held.file]; isHeld && !taken && !open {
					loser, taken = held, true
				}
				if taken && loser.file != f {
					if held.file != f {
						winner, loser = loser, winner
					}
					// The versions that were applied agreed with each other, so
					// the loser is a new one, and to lose it is progress.
					losers[loser.file], l.disputed = true, true
					loser.file.conflicts.add(conflict(c, loser, winner))
				}
				owners[c] = winner
			}
		}
		if len(losers) == 0 {
			break
		}
		for f := range losers {
			trial[f] = f.good
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for f, v := range trial {
		for c := range f.good.owners() {
			delete(l.held, c)
		}
		f.good = v
	}
	if l.held == nil {
		l.held = owners
	} else {
		maps.Copy(l.held, owners)
	}
	l.removed = nil
}

// collect makes a Result of the present state.
func (l *Loader) collect() Result {
	result := Result{Files: len(l.order)}
	if l.watchErr != nil {
		result.Warnings = append(result.Warnings, l.watchErr)
	}
	for _, r := range l.roots {
		if r.problem != nil {
			result.Problems = append(result.Problems, r.problem)
			result.Lost = true
		}
		result.Warnings = append(result.Warnings, r.unread...)
	}
	all := values{services: l.services[:0], slices: l.slices[:0]}
	for _, f := range l.order {
		if f.rejected() {
			result.Rejected++
		}
		if f.problem != nil {
			result.Problems = append(result.Problems, f.problem)
		}
		if f.next != nil {
			result.Problems = append(append(result.Problems, f.next.problems...), f.conflicts...)
			result.Warnings = append(result.Warnings, f.next.warnings...)
		} else if f.good != nil {
			result.Warnings = append(result.Warnings, f.good.warnings...)
		}
		if f.good == nil {
			continue
		}
		from := f.good.values
		all.services = append(all.services, from.services...)
		all.slices = append(all.slices, from.slices...)
		all.endpoints = append(all.endpoints, from.endpoints...)
		all.nodes = append(all.nodes, from.nodes...)
		all.serviceCIDRs = append(all.serviceCIDRs, from.serviceCIDRs...)
	}
	last := &l.result.Objects
	result.Objects = kube.Objects{
		Services: lists.Update(last.Services, all.services), Slices: lists.Update(last.Slices, all.slices),
		Endpoints: all.endpoints, Nodes: all.nodes, ServiceCIDRs: all.serviceCIDRs}
	clear(all.services) // they may go
	clear(all.slices)
	l.services, l.slices = all.services, all.slices
	return result
}

// equal compares what a reader of a Result can see. Objects that did not change
// are the same objects.
func equal(a, b Result) bool {
	same := func(x, y *Error) bool { return *x == *y }
	return a.Files == b.Files && a.Rejected == b.Rejected && a.Lost == b.Lost &&
		lists.Equal(a.Objects.Services, b.Objects.Services) &&
		lists.Equal(a.Objects.Slices, b.Objects.Slices) &&
		slices.Equal(a.Objects.Endpoints, b.Objects.Endpoints) &&
		slices.Equal(a.Objects.Nodes, b.Objects.Nodes) &&
		slices.Equal(a.Objects.ServiceCIDRs, b.Objects.ServiceCIDRs) &&
		slices.EqualFunc(a.Problems, b.Problems, same) &&
		slices.EqualFunc(a.Warnings, b.Warnings, same)
}

// Place returns where an object that is applied, or a field of it, is written down; nothing if there is no such object.
// It reads the file again.
func (l *Loader) Place(kind, namespace, name, field string) (file string, line int) {
	o, ok := l.held[claim{kind: kind, namespace: namespace, name: name}]
	if !ok {
		return "", 0
	}
	file, line = o.file.path, o.line()
	data, err := os.ReadFile(file)
	if err != nil {
		return file, line
	}
	for c := range chunksOf(file, data) {
		if c.base != o.base || c.doc != nil {
			continue
		}
		if root, err := readTree(c.text); err == nil && root != nil && keyOf(root, "items") < 0 {
			line = max(line, o.base+lineOf(root, field))
		}
	}
	return file, line
}
