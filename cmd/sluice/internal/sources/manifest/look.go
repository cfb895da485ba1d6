package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"time"
)

const (
	// patience is how long a pass over the files waits for one that does not answer, as on a network file system
	// whose server is away; and impatience how long it waits for each further one.
	patience   = time.Second
	impatience = 20 * time.Millisecond

	// maxWriting bounds how long a file that keeps changing is waited for, and maxOpen how long one is that a
	// program has open for writing. Such a file is read earlier if it has rested for openRest.
	maxWriting = time.Second
	maxOpen    = time.Minute
	openRest   = 5 * time.Second

	// emptyRest is how long a file must have been empty before its objects are removed: many programs empty a file,
	// and write it again a moment later.
	emptyRest = 2 * time.Second
)

// writer says whether a program has a file open for writing.
type writer int

const (
	unknown writer = iota // the file system does not tell
	none
	open
)

// look is what the file system said of a file.
type look struct {
	at     time.Time
	stat   fs.FileInfo
	reason string // why it is no manifest; empty: it may be one
	gone   bool   // since it was listed
	same   bool   // it is as it was
	busy   bool   // it is being written, and was not read
	data   []byte
	whole  bool // nothing has changed while it was read
}

// question is what a look needs to know.
type question struct {
	path    string
	known   fs.FileInfo // when it was read last; nil to have it read again
	readAt  time.Time
	writing time.Time // since when it has been waited for; zero if it is not
	serves  bool      // it has objects that are applied
	quiet   time.Duration
}

// pass is one walk over the files.
type pass struct {
	quiet time.Duration // see file.refresh
	hung  atomic.Bool   // a file does not answer
}

// look asks the file system about the file. It returns nil while that does not answer: a file that hangs keeps no
// other waiting, and wake has it looked at when the answer has come.
func (f *file) look(p *pass) *look {
	if f.looking != nil {
		select {
		case l := <-f.looking:
			f.looking = nil
			return l
		default:
			return nil
		}
	}
	q := question{f.path, f.stat, f.readAt, f.writing, f.good != nil && len(f.good.objects) > 0, p.quiet}
	answer, late := make(chan *look, 1), new(atomic.Bool)
	go func() { // which may never end
		answer <- q.ask()
		if late.Load() {
			f.wake.notify()
		}
	}()
	wait := patience
	if p.hung.Load() {
		wait = impatience
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case l := <-answer:
		return l
	case <-timer.C:
	}
	late.Store(true)
	p.hung.Store(true)
	select {
	case l := <-answer: // it has not seen late
		return l
	default:
	}
	f.looking = answer
	return nil
}

// ask looks at the file, and reads it if it may have changed and is not being written.
func (q *question) ask() *look {
	l := &look{at: time.Now()}
	var err error
	if l.stat, err = os.Stat(q.path); err != nil {
		if _, gone := os.Lstat(q.path); errors.Is(gone, fs.ErrNotExist) {
			l.gone = true
			return l
		}
	}
	if l.reason = unfit(l.stat, err); l.reason != "" {
		return l
	}
	if l.same = unchanged(q.known, l.stat, q.readAt); l.same {
		return l
	}
	writer := unknown
	if q.quiet > 0 {
		writer = writerOf(q.path)
	}
	rest, most := q.rest(l.stat, writer)
	waits := q.quiet > 0 && (q.writing.IsZero() || l.at.Sub(q.writing) < most)
	if age := l.at.Sub(l.stat.ModTime()); waits && age >= 0 && age < rest {
		l.busy = true
		return l
	}
	data, err := os.ReadFile(q.path)
	after, gone := os.Stat(q.path)
	if l.reason = unfit(after, cmp.Or(err, gone)); l.reason == "" {
		l.data, l.whole = data, sameContent(l.stat, after)
		l.busy = !l.whole && waits
	}
	return l
}

// rest returns how long the file must have rested before it is read, and how long that is waited for.
func (q *question) rest(stat fs.FileInfo, w writer) (rest, most time.Duration) {
	shrunk := q.known != nil && stat.Size() < q.known.Size()
	switch {
	case w == open && stat.Size() == 0:
		return maxOpen, maxOpen
	case w == open:
		return openRest, maxOpen
	case q.serves && (stat.Size() == 0 || w == unknown && shrunk):
		return emptyRest, emptyRest + maxWriting
	}
	return q.quiet, maxWriting
}

// unfit returns why what os.Stat says, or an error, is of no manifest; nothing if it may be.
func unfit(stat fs.FileInfo, err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "is a symbolic link to nothing; restore what it points to, or remove it"
	case err != nil:
		return fmt.Sprintf("cannot be read: %v; make it readable or remove it", cause(err))
	case stat.IsDir():
		return "is a folder, and folders in a folder are not read; rename or remove it"
	case !stat.Mode().IsRegular():
		return "is no regular file; remove it"
	case stat.Size() > maxFileSize:
		return fmt.Sprintf("is larger than %d MiB; split it", maxFileSize>>20)
	}
	return ""
}

// cause returns an error without the path that a fs.PathError repeats.
func cause(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

// unchanged reports whether a file that was read is as it was then.
func unchanged(known, stat fs.FileInfo, readAt time.Time) bool {
	step := coarseTime
	if stat.ModTime().Nanosecond()%int(time.Millisecond) != 0 {
		step = fineTime
	}
	return known != nil && sameContent(known, stat) && readAt.Sub(stat.ModTime()) > step
}

func sameContent(a, b fs.FileInfo) bool {
	return a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && os.SameFile(a, b)
}
