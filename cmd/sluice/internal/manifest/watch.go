package manifest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// quiet is how long files must rest before they are read: most writers need
	// several calls for a file. Together with maxDelay it keeps a change in force
	// within 200 ms of its last byte.
	quiet = 10 * time.Millisecond

	// maxDelay bounds the wait while other files of the folder keep changing.
	maxDelay = 100 * time.Millisecond

	defaultRescan = 10 * time.Second

	// blindRescan is the longest interval between looks at the files where the
	// operating system does not tell of changes.
	blindRescan = time.Second
)

// Watch calls apply with each Result that differs from the last one, which
// Load or an earlier call to apply has told, until ctx ends. It blocks, and it
// calls apply from the same goroutine. Where the operating system will not
// watch a directory (on Linux: fs.inotify.max_user_watches, max_user_instances),
// changes are found by looking once a second, and the Result has a warning.
func (l *Loader) Watch(ctx context.Context, apply func(Result)) {
	var n notifier
	n.open()
	defer n.close()

	rescan := l.Rescan
	if rescan <= 0 {
		rescan = defaultRescan
	}
	reload := func() (busy bool) {
		// Watch first, read then: what changes after the reading is told. If what
		// is to be watched changed in between, once more; a link that is swapped
		// faster than this is left to the events it causes.
		for range 3 {
			before := l.interest()
			l.watchErr = nil
			if dir, err := n.watch(before); err != nil {
				l.watchErr = &Error{File: cmp.Or(dir, strings.Join(l.Paths, ", ")), Reason: fmt.Sprintf("cannot be watched: %v; raise the system's limit of watches (meanwhile changes are looked for once a second)", err)}
			}
			result, changed, b := l.load(quiet)
			busy = b
			if changed {
				apply(result)
			}
			if ctx.Err() != nil || l.interest().equal(before) {
				break
			}
		}
		return busy
	}

	settled := time.NewTimer(0) // when to read what changed
	defer settled.Stop()
	next := time.NewTimer(rescan)
	defer next.Stop()
	var since time.Time // of the first change not read yet
	touch := func() {
		now := time.Now()
		if since.IsZero() {
			since = now
		}
		settled.Reset(min(quiet, since.Add(maxDelay).Sub(now)))
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case event := <-n.events:
			if n.interest.matters(event.Name) {
				touch()
			}
			continue
		case <-n.errors: // events were lost
			touch()
			continue
		case <-settled.C:
		case <-next.C:
		}
		since = time.Time{}
		if reload() {
			settled.Reset(quiet)
		}
		if l.watchErr != nil {
			next.Reset(min(rescan, blindRescan))
		} else {
			next.Reset(rescan)
		}
	}
}

// notifier watches the directories of an interest by means of fsnotify.
type notifier struct {
	interest interest
	watcher  *fsnotify.Watcher // nil if there is none to be had
	openErr  error
	watched  map[string]bool
	events   chan fsnotify.Event
	errors   chan error
}

func (n *notifier) open() {
	n.watched = make(map[string]bool)
	if n.watcher, n.openErr = fsnotify.NewWatcher(); n.openErr == nil {
		n.events, n.errors = n.watcher.Events, n.watcher.Errors
	}
}

// close ends the watcher's goroutine and waits for it.
func (n *notifier) close() {
	if n.watcher != nil {
		n.watcher.Close()
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
		case errors.Is(e, fs.ErrNotExist): // its parent tells when it comes
		case err == nil:
			dir, err = d, e
		}
	}
	return dir, err
}
