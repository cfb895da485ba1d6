package config

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"reflect"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/filewatch"
)

// quiet is how long the file must rest before it is read.
const quiet = 50 * time.Millisecond

// Watcher notices when the meaning of the file of --config changes.
type Watcher struct {
	Args []string // of the program
	Last Config   // what Parse made of them

	// Changed is called with what they mean now, and reports whether to go on watching.
	Changed func(Config) (again bool)
	// Invalid is called with what is wrong with the file. The last valid
	// configuration stays in effect. It is called once for each content of the file.
	Invalid func(error)

	// Blind is called once if the operating system will not watch: changes are then found
	// by looking, every Rescan.
	Blind func(error)

	// Rescan is the longest time between two looks at the file; 0 means 10 s.
	Rescan time.Duration
}

// Run watches until ctx ends, or Changed says so.
//
// kube-proxy ends on every write to the file, and not on the way that kubelet
// replaces it in a volume of a ConfigMap. Run follows both, and the meaning counts:
// a comment that is added changes nothing.
func (w *Watcher) Run(ctx context.Context) {
	if w.Last.File == "" {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	seen, blind := "", false
	look := func(unwatched error) time.Duration {
		if unwatched != nil && !blind {
			blind = true
			w.Blind(fmt.Errorf("watch %s: %w", w.Last.File, unwatched))
		}
		if now := contentOf(w.Last.File); now != seen {
			seen = now
			if !w.read() {
				stop()
			}
		}
		return w.Rescan
	}
	files := filewatch.Watcher{Paths: func() []string { return []string{w.Last.File} }, Quiet: quiet, Look: look}
	files.Run(ctx)
}

// contentOf returns what a file holds, or why it cannot be read.
func contentOf(name string) string {
	data, err := os.ReadFile(name)
	return fmt.Sprintf("%s (%v)", data, err)
}

// read reads the file, and reports whether to go on watching it.
func (w *Watcher) read() (again bool) {
	switch now, err := Parse(w.Args); {
	case err != nil:
		w.Invalid(err)
	case !now.means(w.Last):
		w.Last = now
		return w.Changed(now)
	}
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
	c.Settings, other.Settings = nil, nil // the same values may be written in another way
	return reflect.DeepEqual(c, other)
}
