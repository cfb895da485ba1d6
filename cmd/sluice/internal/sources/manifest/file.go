package manifest

//lint:file-ignore SA1019 Endpoints are deprecated, but a Service without EndpointSlices still has nothing else.

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"iter"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
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
)

// file is one manifest and what is known of it.
type file struct {
	path   string
	link   bool // it may be a symbolic link, or behind one
	frozen bool // the path that leads to it cannot be read: keep all as it is

	stat      fs.FileInfo // when it was read last; nil to have it read again
	readAt    time.Time
	writing   time.Time                       // since when it has been waited for; zero if it is not
	looking   chan *look                      // what the file system says, once it answers; nil: it is not asked
	wake      wake                            // of the Loader
	documents map[[sha256.Size]byte]*document // those of the last read, by their text
	apart     *apart                          // where it is decoded if it is large; nil: at once
	decoding  chan *version                   // what it says now, once that is known; nil: it is

	problem   *Error   // why it cannot be read
	next      *version // what it says now; nil while it cannot be read
	good      *version // what is applied; nil if nothing of it ever was
	conflicts reports  // why next is not applied though it has no problems
}

// version is what a file says at one time. It is never changed once made.
type version struct {
	objects  []placed
	claims   int    // of all objects
	values   values // those of objects
	problems reports
	warnings reports
}

// values are objects by their kinds.
type values struct {
	services     []*corev1.Service
	slices       []*discoveryv1.EndpointSlice
	endpoints    []*corev1.Endpoints
	nodes        []*corev1.Node
	serviceCIDRs []*networkingv1.ServiceCIDR
}

// add adds an object.
func (v *version) add(o placed) {
	v.objects, v.claims = append(v.objects, o), v.claims+len(o.claims)
	switch value := o.value.(type) {
	case *corev1.Service:
		v.values.services = append(v.values.services, value)
	case *discoveryv1.EndpointSlice:
		v.values.slices = append(v.values.slices, value)
	case *corev1.Endpoints:
		v.values.endpoints = append(v.values.endpoints, value)
	case *corev1.Node:
		v.values.nodes = append(v.values.nodes, value)
	case *networkingv1.ServiceCIDR:
		v.values.serviceCIDRs = append(v.values.serviceCIDRs, value)
	}
}

// placed is an object at its place in a file.
type placed struct {
	*object
	file *file
	base int // lines before its document
}

func (p placed) line() int { return p.base + p.object.line }

// refresh reads the file if it may have changed. dirty reports that something about it is new. When the pass is to find
// files quiet, one that changed less than that long ago is taken for one that is still being written, as is one that a
// program has open for writing: it is left alone, and again says when to call again. 0: there is no need to.
func (f *file) refresh(p *pass) (dirty bool, again time.Duration) {
	if f.decoding != nil {
		select {
		case f.next = <-f.decoding:
			f.decoding = nil
			return true, quiet // it may have changed meanwhile
		default:
			return false, 0
		}
	}
	l := f.look(p)
	switch {
	case l == nil:
		return f.unreadable(fmt.Sprintf("does not answer: to read it has taken %s and goes on; "+
			"restore its file system, or remove it", patience)), 0
	case l.gone:
		return false, quiet // the next listing shows it
	case l.reason != "":
		return f.unreadable(l.reason), 0
	case l.same:
		return false, 0
	case l.busy:
		if f.writing.IsZero() {
			f.writing = l.at
		}
		const most = 100 * time.Millisecond
		return false, min(max(quiet, l.at.Sub(f.writing)/8), most)
	}
	f.stat, f.readAt, f.writing, f.problem = l.stat, l.at, time.Time{}, nil
	if !l.whole {
		again = quiet
	}
	if f.apart != nil && len(l.data) > large {
		f.apart.decode(f, l.data)
		return false, again
	}
	f.next = f.parse(l.data)
	return true, again
}

// trial returns the version that is applied unless it conflicts with
// another file; nil for none.
func (f *file) trial() *version {
	if f.next != nil && len(f.next.problems) == 0 {
		return f.next
	}
	return f.good
}

// rejected reports whether what the file says now is not what is applied.
func (f *file) rejected() bool {
	return f.problem != nil || f.next != nil && (len(f.next.problems) > 0 || len(f.conflicts) > 0)
}

// owners yields what a version, which may be nil, claims.
func (v *version) owners() iter.Seq2[claim, placed] {
	return func(yield func(claim, placed) bool) {
		if v == nil {
			return
		}
		for _, o := range v.objects {
			for _, c := range o.claims {
				if !yield(c, o) {
					return
				}
			}
		}
	}
}

// unreadable notes why the file cannot be read and reports whether that is new.
func (f *file) unreadable(reason string) bool {
	problem := Error{File: f.path, Kind: Unreadable, Reason: reason}
	known := f.problem != nil && *f.problem == problem && f.next == nil
	f.problem, f.next, f.stat, f.writing = &problem, nil, nil, time.Time{}
	return !known
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
	groups := grouped(fresh)
	inParallel(len(groups), func(i int) { parse(groups[i]) })
	for _, c := range all {
		for _, o := range c.doc.objects {
			v.add(placed{o, f, c.base})
		}
		for _, e := range c.doc.problems {
			v.problems.add(e.at(f.path, c.base))
		}
		for _, e := range c.doc.warnings {
			v.warnings.add(e.at(f.path, c.base))
		}
	}
	if len(all) == 0 { // a file that was cut off, perhaps
		v.warnings.add(&Error{File: f.path, Line: 1, Kind: Unread, Reason: "the file has no objects"})
	}
	owners := make(map[claim]placed, v.claims)
	for c, o := range v.owners() {
		if first, taken := owners[c]; taken {
			v.problems.add(conflict(c, o, first))
		} else {
			owners[c] = o
		}
	}
	return v
}

// conflict words the problem that loser claims what winner has.
func conflict(c claim, loser, winner placed) *Error {
	where := place(winner.file.path, winner.line())
	e := &Error{File: loser.file.path, Line: loser.line(), Kind: Conflict}
	what := fmt.Sprintf("%s %s", c.protocol, c.frontend)
	if !c.frontend.Addr().IsValid() {
		what = fmt.Sprintf("%s node port %d", c.protocol, c.frontend.Port())
	}
	switch {
	case c.kind != "":
		e.Reason = fmt.Sprintf("%s is already defined at %s; remove one of the two", loser.title, where)
	case loser == winner:
		e.Reason = fmt.Sprintf("%s: %s is in it twice; change one of the two", loser.title, what)
	default:
		e.Reason = fmt.Sprintf("%s: %s already belongs to %s at %s; give one of the two another",
			loser.title, what, winner.title, where)
	}
	return e
}
