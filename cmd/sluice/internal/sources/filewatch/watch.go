package filewatch

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// patience is how many times Quiet a look is put off while files keep changing.
	patience = 10

	// rescan finds changes without an event, such as a folder far up the path that was exchanged.
	rescan = 10 * time.Second

	// keptEvents is how many events wait to be looked at.
	keptEvents = 1024
)

// Watcher looks at files whenever they may have changed.
type Watcher struct {
	// Paths returns the files and folders to watch; they need not exist. What Look finds may
	// change them.
	Paths func() []string
	// Wanted reports whether a file matters for being in one of the folders, by its name.
	// nil: none does.
	Wanted func(name string) bool

	// Quiet is how long files must rest before Look: most writers need several calls for a
	// file. While others keep changing, it is called after ten times as long.
	Quiet time.Duration
	// Look looks at all files, and says when to do so again at the latest; 0: after 10 s.
	// unwatched is why changes have no events, if so (on Linux: fs.inotify.max_user_watches,
	// max_user_instances).
	Look func(unwatched error) (again time.Duration)
	// Wake has Look called at once. May be nil.
	Wake <-chan struct{}
	// Created is called in place of Look, and at once, when a wanted file has come to be and
	// nothing has happened for Quiet. It returns false if Look is needed after all.
	// nil: Look always is.
	Created func(path string) bool

	interest interest
	fs       *fsnotify.Watcher // nil if there is none to be had
	openErr  error
	events   chan fsnotify.Event // one without a name stands for any that were lost
}

// Run watches until ctx ends. It looks at once, and calls all functions itself.
func (w *Watcher) Run(ctx context.Context) {
	w.events = make(chan fsnotify.Event, keptEvents)
	if w.fs, w.openErr = fsnotify.NewWatcher(); w.openErr == nil {
		var pumping sync.WaitGroup
		pumping.Go(w.pump)
		defer pumping.Wait()
		defer w.fs.Close()
	}
	wake := time.NewTimer(0) // whatever was before we watched
	defer wake.Stop()
	var since, last time.Time // of the first change not looked at yet, and of the last look
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case event := <-w.events:
			if !w.matters(event.Name) {
				continue
			}
			now := time.Now()
			if since.IsZero() && now.Sub(last) >= w.Quiet && w.created(event) {
				last = time.Now()
				continue
			}
			if since.IsZero() {
				since = now
			}
			wake.Reset(min(w.Quiet, since.Add(patience*w.Quiet).Sub(now)))
		case <-w.Wake:
			wake.Reset(0)
		case <-wake.C:
			wake.Reset(cmp.Or(w.look(ctx), rescan))
			since, last = time.Time{}, time.Now()
		}
	}
}

// matters reports whether a change of the named path may change what Look finds.
func (w *Watcher) matters(name string) bool {
	in := &w.interest
	_, watched := in.directories[name] // which may have gone
	return name == "" || watched || in.names[name] ||
		w.Wanted != nil && in.directories[filepath.Dir(name)] && w.Wanted(filepath.Base(name))
}

// created reports whether an event was one for Created, and needs nothing else: it may have
// changed neither what is to be looked at nor what is to be watched.
func (w *Watcher) created(event fsnotify.Event) bool {
	return w.Created != nil && event.Has(fsnotify.Create) && !w.interest.names[event.Name] && w.Created(event.Name)
}

// look watches first and looks then: a change after the look has an event. If what is to be
// watched changed in between, once more; a link that is swapped faster than this is left to
// the events it causes.
func (w *Watcher) look(ctx context.Context) (again time.Duration) {
	for range 3 {
		w.interest = interestIn(w.Paths())
		again = w.Look(w.watch())
		if ctx.Err() != nil || interestIn(w.Paths()).equal(w.interest) {
			break
		}
	}
	return again
}

// pump takes the events of fsnotify, without ever waiting for their reader: on Windows
// fsnotify answers no call until its last event is taken, and the reader may be in such
// a call.
func (w *Watcher) pump() {
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

// watch turns to the directories of interest. It returns why one cannot be watched, which is
// a *fs.PathError unless none can be.
func (w *Watcher) watch() (err error) {
	if w.fs == nil {
		return w.openErr
	}
	for _, dir := range w.fs.WatchList() {
		if _, wanted := w.interest.directories[dir]; !wanted {
			_ = w.fs.Remove(dir) // it may have gone by itself
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(w.interest.directories)) {
		// A directory that is watched is added again: if it was replaced by
		// another of the same name, this finds the new one. Its parent reports one
		// that is to come.
		if e := w.fs.Add(dir); e != nil && err == nil && !errors.Is(e, fs.ErrNotExist) {
			err = &fs.PathError{Op: "add", Path: dir, Err: e}
		}
	}
	return err
}
