package manifest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// quiet is how long files must rest before they are read: most writers need
	// several calls for a file. Together with maxDelay a change is applied
	// within 200 ms of its last byte. A file that another is renamed to is whole, and
	// read at once if nothing was read for as long.
	quiet = 10 * time.Millisecond

	// maxDelay bounds the wait while other files of the folder keep changing.
	maxDelay = 100 * time.Millisecond

	defaultRescan = 10 * time.Second

	// blindRescan is the longest interval between looks at the files where the
	// operating system does not report changes.
	blindRescan = time.Second
)

// Watch calls apply with each Result that differs from the last one, which
// Load returned or an earlier call to apply got, until ctx ends. It blocks, and it
// calls apply from the same goroutine. Where the operating system will not
// watch a directory (on Linux: fs.inotify.max_user_watches, max_user_instances),
// changes are found by looking once a second, and the Result has a warning.
func (l *Loader) Watch(ctx context.Context, apply func(Result)) {
	w := watcher{Loader: l, apply: apply, touched: touched{any: true}} // whatever was before we watched
	w.open()
	defer w.close()

	rescan := l.Rescan
	if rescan <= 0 {
		rescan = defaultRescan
	}
	rested := time.NewTimer(0) // when to read what changed
	defer rested.Stop()
	next := time.NewTimer(rescan)
	defer next.Stop()
	var since, last time.Time // of the first change not read yet, and of the last reading
	for ctx.Err() == nil {
		noticed, atOnce := false, false
		select {
		case <-ctx.Done():
			return
		case event := <-w.events:
			wasQuiet := since.IsZero() && w.touched.none() && time.Since(last) >= quiet
			if noticed = w.notice(event.Name); !noticed {
				continue
			}
			// A known file cannot be created, but what was prepared elsewhere can get its name.
			atOnce = wasQuiet && event.Has(fsnotify.Create) && w.known()
		case <-w.lost:
			w.touched.any, noticed = true, true
		case <-rested.C:
		case <-next.C:
			w.touched.any = true
			rested.Reset(0)
			continue
		}
		if noticed && !atOnce {
			now := time.Now()
			if since.IsZero() {
				since = now
			}
			rested.Reset(min(quiet, since.Add(maxDelay).Sub(now)))
			continue
		}
		rest := quiet
		if atOnce {
			rest = 0
		}
		if w.reload(ctx, rest) {
			rested.Reset(quiet)
		} else {
			w.touched = touched{}
		}
		since, last = time.Time{}, time.Now()
		if l.watchErr != nil {
			next.Reset(min(rescan, blindRescan))
		} else {
			next.Reset(rescan)
		}
	}
}

// watcher is one Watch at work.
type watcher struct {
	*Loader
	notifier
	apply   func(Result)
	touched touched
}

// notice notes that something has happened at path, and reports whether that matters.
func (w *watcher) notice(path string) bool {
	if !w.notifier.interest.matters(path) {
		return false
	}
	if w.isEntry(path) {
		w.touched.add(path)
	} else {
		w.touched.any = true
	}
	return true
}

// isEntry reports whether path is in one of the folders in Paths, which no link leads
// to, so that it concerns at most the file of that path.
func (w *watcher) isEntry(path string) bool {
	dir, in := filepath.Dir(path), w.notifier.interest
	return in.folders[dir] && !in.names[path] && !in.folders[path] && slices.ContainsFunc(w.Paths, func(p string) bool {
		abs, err := filepath.Abs(p)
		return err == nil && abs == dir
	})
}

// reload reads what was touched and has rested, and applies it. busy asks to be called
// again.
func (w *watcher) reload(ctx context.Context, rest time.Duration) (busy bool) {
	l := w.Loader
	if w.known() {
		return w.reread(rest)
	}
	// Watch first, read then: a change after the reading has an event. If what
	// is to be watched changed in between, once more; a link that is swapped
	// faster than this is left to the events it causes.
	for range 3 {
		before := l.interest()
		l.watchErr = nil
		if dir, err := w.watch(before); err != nil {
			l.watchErr = &Error{File: cmp.Or(dir, strings.Join(l.Paths, ", ")), Kind: Unwatched, Reason: fmt.Sprintf(
				"cannot be watched: %v; raise the system's limit of watches (meanwhile changes are looked for once a "+
					"second)", err)}
		}
		l.list()
		busy = w.reread(rest)
		if ctx.Err() != nil || l.interest().equal(before) {
			break
		}
		w.touched.any = true // what is new to be watched may have changed before it was
	}
	return busy
}

// reread reads the files that were touched and have rested.
func (w *watcher) reread(rest time.Duration) (busy bool) {
	result, changed, busy := w.read(rest, w.touched.has)
	if changed {
		w.apply(result)
	}
	return busy
}

// known reports whether each file that was touched was there before and still is, so
// that neither what is to be read nor what is to be watched can be other than before.
func (w *watcher) known() bool {
	if w.touched.any || len(w.touched.paths) == 0 || w.watchErr != nil {
		return false
	}
	for path := range w.touched.paths {
		f := w.files[path]
		if f == nil || f.link {
			return false
		}
		if stat, err := os.Lstat(path); err != nil || !stat.Mode().IsRegular() {
			return false
		}
	}
	return true
}

// touched are the files that may have changed since they were read, so that a change
// among thousands of files does not cost a look at each. The zero value is none.
type touched struct {
	any   bool            // any file may have
	paths map[string]bool // absolute
}

func (t *touched) none() bool { return !t.any && len(t.paths) == 0 }

func (t *touched) add(path string) {
	if t.paths == nil {
		t.paths = make(map[string]bool)
	}
	t.paths[path] = true
}

// has reports whether f is one of them. What may be a link depends on more than its path.
func (t *touched) has(f *file) bool {
	return t.any || f.link || f.stat == nil || !f.writing.IsZero() || t.paths[f.key]
}

// notifier watches the directories of an interest by means of fsnotify.
type notifier struct {
	interest interest
	watcher  *fsnotify.Watcher // nil if there is none to be had
	openErr  error
	watched  map[string]bool
	events   chan fsnotify.Event
	lost     chan struct{} // there were more events than could be kept, or the system lost some
	pumping  sync.WaitGroup
}

// keptEvents is how many events wait to be looked at. With more, all files are looked at.
const keptEvents = 1024

func (n *notifier) open() {
	n.watched = make(map[string]bool)
	if n.watcher, n.openErr = fsnotify.NewWatcher(); n.openErr == nil {
		n.events, n.lost = make(chan fsnotify.Event, keptEvents), make(chan struct{}, 1)
		n.pumping.Go(n.pump)
	}
}

// pump takes the events of fsnotify, without ever waiting for their reader: on Windows
// fsnotify answers no call until its last event is taken, and the reader may be in such
// a call.
func (n *notifier) pump() {
	lose := func() {
		select {
		case n.lost <- struct{}{}:
		default: // one says it all
		}
	}
	for events, errs := n.watcher.Events, n.watcher.Errors; events != nil || errs != nil; {
		select {
		case e, open := <-events:
			if !open {
				events = nil
				continue
			}
			select {
			case n.events <- e:
			default:
				lose()
			}
		case _, open := <-errs:
			if !open {
				errs = nil
				continue
			}
			lose()
		}
	}
}

// close ends the goroutines and waits for them.
func (n *notifier) close() {
	if n.watcher != nil {
		_ = n.watcher.Close()
		n.pumping.Wait()
	}
}

// watch turns to the directories of in. It returns the first that cannot be
// watched, if any, and why; none is named when it is the same for all.
func (n *notifier) watch(in interest) (dir string, err error) {
	n.interest = in
	if n.watcher == nil {
		return "", n.openErr
	}
	directories := in.directories()
	for dir := range n.watched {
		if !directories[dir] {
			_ = n.watcher.Remove(dir) // it may have gone by itself
			delete(n.watched, dir)
		}
	}
	for _, d := range slices.Sorted(maps.Keys(directories)) {
		// A directory that is watched is added again: if it was replaced by
		// another of the same name, this finds the new one.
		e := n.watcher.Add(d)
		switch {
		case e == nil:
			n.watched[d] = true
		case errors.Is(e, fs.ErrNotExist): // its parent reports when it comes
		case err == nil:
			dir, err = d, e
		}
	}
	return dir, err
}
