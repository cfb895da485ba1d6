package config

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// quiet is how long the file must rest before it is read: most writers need
	// several calls for a file.
	quiet = 50 * time.Millisecond

	// maxDelay bounds the wait while other files of its folder keep changing.
	maxDelay = 500 * time.Millisecond

	// defaultRescan finds changes without an event, such as a link far up the path
	// that now leads elsewhere.
	defaultRescan = 10 * time.Second
)

// Watcher notices when the meaning of the file of --config changes.
type Watcher struct {
	Args []string // of the program
	Last Config   // what Parse made of them

	// Changed is called with what they mean now. It is called once; the
	// caller starts a new Watcher with what is in effect then.
	Changed func(Config)
	// Invalid is called with what is wrong with the file. The last valid
	// configuration stays in effect. It is called once for each content of the file.
	Invalid func(error)

	// Blind is called once if the operating system will not watch (on Linux:
	// fs.inotify.max_user_watches, max_user_instances): changes are then found by
	// looking, every Rescan.
	Blind func(error)

	// Rescan is the longest time between two looks at the file; 0 means 10 s.
	Rescan time.Duration
}

// Run watches until ctx ends or the meaning has changed.
//
// kube-proxy ends on every write to the file, and not on the way that kubelet
// replaces it in a volume of a ConfigMap. Run follows both, and the meaning counts:
// a comment that is added changes nothing.
func (w *Watcher) Run(ctx context.Context) {
	if w.Last.File == "" {
		return
	}
	changed := make(chan struct{}, 1)
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		var pumping sync.WaitGroup
		pumping.Go(func() { pump(watcher, changed) })
		defer pumping.Wait()
		defer watcher.Close()
	}
	seen, blind := "", false
	look := time.NewTimer(0)
	defer look.Stop()
	var since time.Time // of the first event after the last look
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			if since.IsZero() {
				since = time.Now()
			}
			look.Reset(min(quiet, time.Until(since.Add(maxDelay))))
			continue
		case <-look.C:
		}
		since = time.Time{}
		if watcher != nil { // watch first, read then: a change after the reading has an event
			err = watchAround(watcher, w.Last.File)
		}
		if err != nil && !blind {
			blind = true
			w.Blind(fmt.Errorf("watch %s: %w", w.Last.File, err))
		}
		if now := contentOf(w.Last.File); now != seen {
			seen = now
			if w.read() {
				return
			}
		}
		look.Reset(cmp.Or(w.Rescan, defaultRescan))
	}
}

// pump puts a token into changed for each event of a watcher, until it is closed. It never
// waits for the receiver: on Windows fsnotify answers no call until its last
// event is taken, and such a call may be what that one is at.
func pump(watcher *fsnotify.Watcher, changed chan<- struct{}) {
	for open := true; open; {
		select {
		case _, open = <-watcher.Events:
		case _, open = <-watcher.Errors: // events were lost
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

// contentOf returns what a file holds, or why it cannot be read.
func contentOf(name string) string {
	data, err := os.ReadFile(name)
	return fmt.Sprintf("%s (%v)", data, err)
}

// read reports whether the file means something else now.
func (w *Watcher) read() bool {
	now, err := Parse(w.Args)
	if err != nil {
		w.Invalid(err)
		return false
	}
	if now.means(w.Last) {
		return false
	}
	w.Changed(now)
	return true
}

// means reports whether two command lines and files ask for the same.
func (c Config) means(other Config) bool {
	// The text, as fields of the published type remember how they were written.
	mine, err := c.Document.encode()
	theirs, err2 := other.Document.encode()
	if err != nil || err2 != nil || !bytes.Equal(mine, theirs) {
		return false
	}
	c.Warnings, other.Warnings = nil, nil
	c.Document, other.Document = Document{}, Document{}
	return reflect.DeepEqual(c, other)
}

// watchAround watches the folder of a file and, if it is a link, that of what it
// leads to. Folders are watched rather than the file, since editors and kubelet
// replace files by renaming. A folder that is watched already is added again, to
// find another of the same name.
func watchAround(watcher *fsnotify.Watcher, name string) error {
	err := watcher.Add(filepath.Dir(name))
	if target, e := filepath.EvalSymlinks(name); e == nil && filepath.Dir(target) != filepath.Dir(name) {
		err = errors.Join(err, watcher.Add(filepath.Dir(target)))
	}
	return err
}
