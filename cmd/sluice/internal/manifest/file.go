package manifest

//lint:file-ignore SA1019 Endpoints are deprecated, but a Service without EndpointSlices still has nothing else.

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/kube"
)

const (
	// coarseTime is the coarsest step of a file's modification time that is met
	// in practice (FAT). A file that was read sooner than this after its last
	// change may have changed again since without a sign of it, so it is read
	// again.
	coarseTime = 2 * time.Second

	// fineTime is that step where a time has parts of a millisecond, as nearly all file
	// systems have them: two ticks of the slowest clock that kernels take it from (100 Hz).
	fineTime = 20 * time.Millisecond

	// maxWriting bounds how long a file that keeps changing is waited for.
	maxWriting = time.Second
)

// file is one manifest and what is known of it.
type file struct {
	path   string
	key    string // path, absolute
	link   bool   // it may be a symbolic link, or behind one
	frozen bool   // the path that leads to it cannot be read: keep all as it is

	stat      fs.FileInfo // when it was read last; nil to have it read again
	readAt    time.Time
	writing   time.Time                       // since when it has been waited for; zero if it is not
	sum       [sha256.Size]byte               // of what was read last
	documents map[[sha256.Size]byte]*document // those of the last read, by their text

	problem   *Error   // why it cannot be read
	next      *version // what it says now; nil while it cannot be read
	good      *version // what is applied; nil if nothing of it ever was
	conflicts reports  // why next is not applied though it has no problems
}

// version is what a file says at one time. It is never changed once made.
type version struct {
	objects  []placed
	values   kube.Objects // those of objects
	problems reports
	warnings reports
}

// add adds an object.
func (v *version) add(o placed) {
	v.objects = append(v.objects, o)
	switch value := o.value.(type) {
	case *corev1.Service:
		v.values.Services = append(v.values.Services, value)
	case *discoveryv1.EndpointSlice:
		v.values.Slices = append(v.values.Slices, value)
	case *corev1.Endpoints:
		v.values.Endpoints = append(v.values.Endpoints, value)
	case *corev1.Node:
		v.values.Nodes = append(v.values.Nodes, value)
	}
}

// placed is an object at its place in a file.
type placed struct {
	*object
	base int // lines before its document
}

func (p placed) line() int { return p.base + p.object.line }

// refresh reads the file if it may have changed. dirty reports that something
// about it is new. When quiet is not 0, a file that changed less than that long
// ago is taken for one that is still being written: it is left alone, and busy
// asks to be called again.
func (f *file) refresh(quiet time.Duration) (dirty, busy bool) {
	now := time.Now()
	stat, err := os.Stat(f.path)
	if err != nil {
		if _, gone := os.Lstat(f.path); errors.Is(gone, fs.ErrNotExist) {
			return false, true // since it was listed; the next listing shows it
		}
		if errors.Is(err, fs.ErrNotExist) {
			return f.unreadable("is a symbolic link to nothing; restore what it points to, or remove it"), false
		}
		return f.unreadable("cannot be read: %v; make it readable or remove it", cause(err)), false
	}
	switch mode := stat.Mode(); {
	case mode.IsDir():
		return f.unreadable("is a folder, and folders in a folder are not read; rename or remove it"), false
	case !mode.IsRegular():
		return f.unreadable("is no regular file; remove it"), false
	case stat.Size() > maxFileSize:
		return f.unreadable("is larger than %d MiB; split it", maxFileSize>>20), false
	}
	if f.unchanged(stat) {
		return false, false
	}
	wait := quiet > 0 && (f.writing.IsZero() || now.Sub(f.writing) < maxWriting)
	age := now.Sub(stat.ModTime())
	if !wait || age < 0 || age >= quiet {
		data, stat, whole, err := readFile(f.path)
		if err != nil {
			return f.unreadable("cannot be read: %v; make it readable or remove it", cause(err)), false
		}
		if whole || !wait {
			f.stat, f.readAt, f.writing, f.problem = stat, now, time.Time{}, nil
			// What has to be read again to be sure is nearly always what it was.
			if sum := sha256.Sum256(data); f.next == nil || sum != f.sum {
				f.next, f.sum = f.parse(data), sum
			}
			return true, !whole
		}
	}
	if f.writing.IsZero() {
		f.writing = now
	}
	return false, true
}

// trial returns the version that is applied unless it conflicts with
// another file; nil for none.
func (f *file) trial() *version {
	if f.next != nil && len(f.next.problems) == 0 {
		return f.next
	}
	return f.good
}

// owners yields what a version of f, which may be nil, claims.
func (v *version) owners(f *file) iter.Seq2[claim, owner] {
	return func(yield func(claim, owner) bool) {
		if v == nil {
			return
		}
		for _, o := range v.objects {
			for _, c := range o.claims {
				if !yield(c, owner{f, o}) {
					return
				}
			}
		}
	}
}

// unreadable notes why the file cannot be read and reports whether that is new.
func (f *file) unreadable(format string, args ...any) bool {
	problem := Error{File: f.path, Kind: Unreadable, Reason: fmt.Sprintf(format, args...)}
	known := f.problem != nil && *f.problem == problem && f.next == nil
	f.problem, f.next, f.stat, f.writing = &problem, nil, nil, time.Time{}
	return !known
}

// cause returns an error without the path that a fs.PathError repeats.
func cause(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

func (f *file) unchanged(stat fs.FileInfo) bool {
	return f.stat != nil && sameContent(f.stat, stat) && os.SameFile(f.stat, stat) &&
		f.readAt.Sub(stat.ModTime()) > step(stat.ModTime())
}

// step returns the step in which the clock of a modification time may go.
func step(modified time.Time) time.Duration {
	if modified.Nanosecond()%int(time.Millisecond) != 0 {
		return fineTime
	}
	return coarseTime
}

func sameContent(a, b fs.FileInfo) bool {
	return a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// readFile returns the content of a file and its state before it was read; whole
// is false if that changed meanwhile.
func readFile(path string) (data []byte, stat fs.FileInfo, whole bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, false, err
	}
	defer f.Close()
	if stat, err = f.Stat(); err != nil {
		return nil, nil, false, err
	}
	content := bytes.NewBuffer(make([]byte, 0, min(stat.Size(), maxFileSize)+bytes.MinRead))
	if _, err = content.ReadFrom(io.LimitReader(f, maxFileSize+1)); err != nil {
		return nil, nil, false, err
	}
	if content.Len() > maxFileSize {
		return nil, nil, false, fmt.Errorf("it has grown beyond %d MiB", maxFileSize>>20)
	}
	after, err := f.Stat()
	if err != nil {
		return nil, nil, false, err
	}
	return content.Bytes(), stat, sameContent(stat, after), nil
}

// parse reads the content of the file, and reuses the documents of the last time
// whose text did not change.
func (f *file) parse(data []byte) *version {
	known, v := f.documents, new(version)
	f.documents = make(map[[sha256.Size]byte]*document)
	var all, fresh []chunk
	for c := range chunksOf(f.path, data) {
		switch {
		case c.doc != nil:
		case firstLine(c.text) == 0:
			continue
		case len(all) == maxDocuments:
			c.doc = failed(1, Limit, fmt.Sprintf("the file has more than %d documents; split it", maxDocuments))
		default:
			key := sha256.Sum256(c.text)
			if c.doc = cmp.Or(f.documents[key], known[key]); c.doc == nil {
				c.doc = new(document)
				fresh = append(fresh, c)
			}
			f.documents[key] = c.doc
		}
		if all = append(all, c); len(all) > maxDocuments {
			break
		}
	}
	inParallel(len(fresh), func(i int) { parse(fresh[i].text, fresh[i].doc) })
	for _, c := range all {
		for _, o := range c.doc.objects {
			v.add(placed{o, c.base})
		}
		for _, e := range c.doc.problems {
			v.problems.add(&Error{File: f.path, Line: c.base + e.Line, Kind: e.Kind, Reason: e.Reason})
		}
		for _, e := range c.doc.warnings {
			v.warnings.add(&Error{File: f.path, Line: c.base + e.Line, Kind: e.Kind, Reason: e.Reason})
		}
	}
	f.findDuplicates(v)
	return v
}

// findDuplicates reports what the file claims more than once.
func (f *file) findDuplicates(v *version) {
	owners := make(map[claim]placed, len(v.objects))
	for _, o := range v.objects {
		for _, c := range o.claims {
			if first, taken := owners[c]; taken {
				v.problems.add(conflict(c, owner{f, o}, owner{f, first}))
			} else {
				owners[c] = o
			}
		}
	}
}

// owner is an object in its file.
type owner struct {
	file   *file
	object placed
}

// conflict words the problem that loser claims what winner has.
func conflict(c claim, loser, winner owner) *Error {
	where := place(winner.file.path, winner.object.line())
	e := &Error{File: loser.file.path, Line: loser.object.line(), Kind: Conflict}
	what := fmt.Sprintf("%s %s", c.protocol, c.frontend)
	if !c.frontend.Addr().IsValid() {
		what = fmt.Sprintf("%s node port %d", c.protocol, c.frontend.Port())
	}
	switch {
	case c.kind != "":
		e.Reason = fmt.Sprintf("%s is already defined at %s; remove one of the two", loser.object.title, where)
	case loser.object.object == winner.object.object && loser.object.base == winner.object.base:
		e.Reason = fmt.Sprintf("%s: %s is in it twice; change one of the two", loser.object.title, what)
	default:
		e.Reason = fmt.Sprintf("%s: %s already belongs to %s at %s; give one of the two another",
			loser.object.title, what, winner.object.title, where)
	}
	return e
}
