package manifest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/filewatch"
)

const (
	// quiet is how long files must rest before they are read. A change is applied within
	// 200 ms of its last byte. A file that another is renamed to is whole, and read at once
	// if nothing was read for as long.
	quiet = 10 * time.Millisecond

	// blindRescan is the longest interval between looks at the files where the
	// operating system does not report changes.
	blindRescan = time.Second
)

// Watch calls apply with each Result that differs from the last one, which
// Load returned or an earlier call to apply got, until ctx ends. It blocks, and it
// calls apply from the same goroutine. Where the operating system will not
// watch a directory, changes are found by looking once a second, and the Result has a
// warning. Large files are decoded on goroutines that have ended when it returns, one at a
// time; what other files say is applied meanwhile. So it is while a file does not answer.
func (l *Loader) Watch(ctx context.Context, apply func(Result)) {
	read := func(rest time.Duration, files []*file) (again time.Duration) {
		result, changed, again := l.read(rest, files)
		if changed {
			apply(result)
		}
		return again
	}
	l.begin()
	l.apart = &apart{decoded: l.wake}
	defer func() {
		l.apart.running.Wait()
		l.apart = nil
	}()
	w := filewatch.Watcher{Paths: l.watched, Wanted: isManifest, Quiet: quiet, Wake: l.wake}
	w.Look = func(unwatched error) (again time.Duration) {
		l.watchErr = l.blindness(unwatched)
		l.list()
		if again := read(quiet, l.order); again != 0 {
			return again
		}
		if unwatched != nil {
			return min(cmp.Or(l.Rescan, blindRescan), blindRescan)
		}
		return l.Rescan
	}
	// A file that was there cannot be created, but what was prepared elsewhere can get its name.
	w.Created = func(path string) bool {
		f := l.files[path]
		if f != nil {
			f.looking = nil // it is another file now
		}
		if f == nil || f.link || l.watchErr != nil {
			return false
		}
		stat, err := os.Lstat(path)
		return err == nil && stat.Mode().IsRegular() && read(0, []*file{f}) == 0
	}
	w.Run(ctx)
}

// watched returns what Load depends on.
func (l *Loader) watched() []string {
	paths := slices.Clone(l.Paths)
	for _, f := range l.order {
		if f.link {
			paths = append(paths, f.path)
		}
	}
	return paths
}

// blindness words why changes have no events; nil if they have.
func (l *Loader) blindness(err error) *Error {
	if err == nil {
		return nil
	}
	where := strings.Join(l.Paths, ", ")
	if one := (*fs.PathError)(nil); errors.As(err, &one) {
		where = one.Path
	}
	return &Error{File: where, Kind: Unwatched, Reason: fmt.Sprintf(
		"cannot be watched: %v; raise the system's limit of watches (meanwhile changes are looked for once a second)",
		cause(err))}
}
