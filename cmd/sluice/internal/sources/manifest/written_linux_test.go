package manifest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// age makes a file that old.
func age(t *testing.T, path string, old time.Duration) {
	t.Helper()
	at := time.Now().Add(-old)
	testbed.Check(t, os.Chtimes(path, at, at))
}

// TestFileBeingWritten: while Watch reads, a file that changed a moment ago is left alone, but not for ever.
func TestFileBeingWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	write(t, path, service("a", "10.96.0.1"))
	f, p := &file{path: path}, &pass{quiet: time.Hour}
	if dirty, again := f.refresh(p); dirty || again == 0 {
		t.Fatalf("fresh file: dirty %v, again %v", dirty, again)
	}
	f.writing = time.Now().Add(-maxWriting)
	if dirty, again := f.refresh(p); !dirty || again != 0 || len(f.next.objects) != 1 {
		t.Fatalf("after the longest wait: dirty %v, again %v", dirty, again)
	}
	age(t, path, -time.Hour) // a clock elsewhere, as on a network file system
	if dirty, again := f.refresh(p); !dirty || again != 0 {
		t.Fatalf("file of the future: dirty %v, again %v", dirty, again)
	}
}

// TestOpenForWriting: what a program has open for writing is not applied, half or empty, until it has closed the file,
// or left it alone for long.
func TestOpenForWriting(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	write(t, path, service("a", "10.96.0.1")+"---\n"+service("b", "10.96.0.2"))
	l := Loader{Paths: []string{dir}}
	const both = "a=10.96.0.1 b=10.96.0.2"
	expect(t, &l, dir, both)
	look := func(what, want string, waits bool) {
		t.Helper()
		r, _, again := l.read(quiet, l.order)
		if got := served(r); got != want || (again != 0) != waits || len(r.Problems) > 0 {
			t.Errorf("%s: %q, again in %v, problems %v; want %q", what, got, again, r.Problems, want)
		}
	}
	w, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	testbed.Check(t, err)
	if writerOf(path) == unknown {
		_ = w.Close()
		t.Skip("this file system has no leases")
	}
	age(t, path, 2*emptyRest)
	look("empty and open", both, true)
	_, err = w.WriteString(service("a", "10.96.0.1"))
	testbed.Check(t, err)
	age(t, path, openRest/2)
	look("half and open", both, true)
	age(t, path, 2*openRest)
	look("half, open, left alone", "a=10.96.0.1", false)
	_, err = w.WriteString("---\n" + service("b", "10.96.0.2"))
	testbed.Check(t, err)
	testbed.Check(t, w.Close())
	age(t, path, quiet)
	look("closed", both, false)
	testbed.Check(t, os.Truncate(path, 0))
	age(t, path, emptyRest/2)
	look("empty", both, true)
	age(t, path, 2*emptyRest)
	look("empty for long", "", false)
}

// TestHangingFile: a file whose read does not return keeps no other from being applied, and is a problem until it has
// gone.
func TestHangingFile(t *testing.T) {
	const kmsg = "/proc/kmsg" // its read waits for the next message
	if f, err := os.Open(kmsg); err != nil {
		t.Skip("needs ", kmsg, ": ", err)
	} else {
		_ = f.Close()
	}
	dir := t.TempDir()
	w := watch(t, &Loader{Paths: []string{dir}, Rescan: never})
	write(t, filepath.Join(dir, "a.yaml"), service("a", "10.96.0.1"))
	w.until("a=10.96.0.1")
	testbed.Check(t, os.Symlink(kmsg, filepath.Join(dir, "hangs.yaml")))
	w.until("a=10.96.0.1", "hangs.yaml: does not answer")
	write(t, filepath.Join(dir, "a.yaml"), service("a", "10.96.0.2"))
	w.until("a=10.96.0.2", "hangs.yaml: does not answer")
	remove(t, filepath.Join(dir, "hangs.yaml"))
	w.until("a=10.96.0.2")
}
