package manifest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
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

	// keptEvents is how many events wait to be looked at.
	keptEvents = 1024
)

// Watch calls apply with each Result that differs from the last one, which
// Load returned or an earlier call to apply got, until ctx ends. It blocks, and it
// calls apply from the same goroutine. Where the operating system will not
// watch a directory (on Linux: fs.inotify.max_user_watches, max_user_instances),
// changes are found by looking once a second, and the Result has a warning.
func (l *Loader) Watch(ctx context.Context, apply func(Result)) {
	w := watcher{Loader: l, apply: apply, events: make(chan fsnotify.Event, keptEvents)}
	if w.fs, w.openErr = fsnotify.NewWatcher(); w.openErr == nil {
		var pumping sync.WaitGroup
		pumping.Go(w.pump)
		defer pumping.Wait()
		defer w.fs.Close()
	}
	wake := time.NewTimer(0) // whatever was before we watched
	defer wake.Stop()
	var since, last time.Time // of the first change not read yet, and of the last reading
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case event := <-w.events:
			if event.Name != "" && !w.interest.matters(event.Name) {
				continue
			}
			now := time.Now()
			if since.IsZero() && now.Sub(last) >= quiet {
				if f := w.replaced(event); f != nil {
					if w.read(0, []*file{f}) {
						wake.Reset(quiet)
					}
					last = time.Now()
					continue
				}
			}
			if since.IsZero() {
				since = now
			}
			wake.Reset(min(quiet, since.Add(maxDelay).Sub(now)))
			continue
		case <-wake.C:
		}
		busy := w.look(ctx)
		switch rescan := cmp.Or(l.Rescan, defaultRescan); {
		case busy:
			wake.Reset(quiet)
		case l.watchErr != nil:
			wake.Reset(min(rescan, blindRescan))
		default:
			wake.Reset(rescan)
		}
		since, last = time.Time{}, time.Now()
	}
}

// watcher is one Watch at work.
type watcher struct {
	*Loader
	apply    func(Result)
	interest interest
	fs       *fsnotify.Watcher // nil if there is none to be had
	openErr  error
	events   chan fsnotify.Event // one without a name stands for any that were lost
}

// replaced returns the file that another was renamed to, if nothing else can have changed
// by it: neither what is to be read nor what is to be watched. A file that was there cannot
// be created, but what was prepared elsewhere can get its name.
func (w *watcher) replaced(event fsnotify.Event) *file {
	f := w.files[event.Name]
	if !event.Has(fsnotify.Create) || f == nil || f.link || w.interest.names[event.Name] || w.watchErr != nil {
		return nil
	}
	if stat, err := os.Lstat(event.Name); err != nil || !stat.Mode().IsRegular() {
		return nil
	}
	return f
}

// look reads all that changed and has rested, and applies it. busy asks for another look
// soon.
func (w *watcher) look(ctx context.Context) (busy bool) {
	// Watch first, read then: a change after the reading has an event. If what
	// is to be watched changed in between, once more; a link that is swapped
	// faster than this is left to the events it causes.
	for range 3 {
		w.interest = w.Loader.interest()
		w.watchErr = nil
		if dir, err := w.watch(); err != nil {
			w.watchErr = &Error{File: cmp.Or(dir, strings.Join(w.Paths, ", ")), Kind: Unwatched, Reason: fmt.Sprintf(
				"cannot be watched: %v; raise the system's limit of watches (meanwhile changes are looked for once a "+
					"second)", err)}
		}
		w.list()
		busy = w.read(quiet, w.order)
		if ctx.Err() != nil || w.Loader.interest().equal(w.interest) {
			break
		}
	}
	return busy
}

// read reads those of the files that changed and have rested, and applies them.
func (w *watcher) read(rest time.Duration, files []*file) (busy bool) {
	result, changed, busy := w.Loader.read(rest, files)
	if changed {
		w.apply(result)
	}
	return busy
}

// pump takes the events of fsnotify, without ever waiting for their reader: on Windows
// fsnotify answers no call until its last event is taken, and the reader may be in such
// a call.
func (w *watcher) pump() {
	for {
		var event fsnotify.Event
		select {
		case e, open := <-w.fs.Events:
			if !open {
				return
			}
			event = e
		case <-w.fs.Errors: // the system lost events
		}
		select {
		case w.events <- event:
			continue
		default: // of too many, one that stands for all is kept
		}
		select {
		case <-w.events:
		default:
		}
		w.events <- fsnotify.Event{}
	}
}

// watch turns to the directories of interest. It returns the first that cannot be
// watched, if any, and why; none is named when it is the same for all.
func (w *watcher) watch() (dir string, err error) {
	if w.fs == nil {
		return "", w.openErr
	}
	for _, dir := range w.fs.WatchList() {
		if _, wanted := w.interest.directories[dir]; !wanted {
			_ = w.fs.Remove(dir) // it may have gone by itself
		}
	}
	for _, d := range slices.Sorted(maps.Keys(w.interest.directories)) {
		// A directory that is watched is added again: if it was replaced by
		// another of the same name, this finds the new one. Its parent reports one
		// that is to come.
		if e := w.fs.Add(d); e != nil && err == nil && !errors.Is(e, fs.ErrNotExist) {
			dir, err = d, e
		}
	}
	return dir, err
}
