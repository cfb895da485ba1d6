package manifest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestReadAgain: what is read again only to be sure that it is the same costs no more
// than its bytes: none of its documents is looked at, whatever is in force beside it.
func TestReadAgain(t *testing.T) {
	dir := t.TempDir()
	var all strings.Builder
	for i := range 500 {
		fmt.Fprintf(&all, "---\n%s", service(fmt.Sprint("s", i), fmt.Sprintf("10.96.%d.%d", 1+i/250, 1+i%250)))
	}
	path := filepath.Join(dir, "a.yaml")
	write(t, path, all.String())
	l := Loader{Paths: []string{dir}}
	first, _ := l.Load()
	version := l.order[0].next
	for range 2 {
		later := time.Now().Add(time.Hour)
		if err := os.Chtimes(path, later, later); err != nil {
			t.Fatal(err)
		}
		second, changed := l.Load()
		if changed || l.order[0].next != version || l.order[0].good != version || len(second.Objects.Services) != len(first.Objects.Services) {
			t.Fatalf("the same bytes were taken for another version (changed %v)", changed)
		}
	}
	write(t, path, service("s0", "10.96.1.1"))
	expect(t, &l, dir, "s0=10.96.1.1")
	write(t, path, all.String())
	if again, changed := l.Load(); !changed || len(again.Objects.Services) != 500 {
		t.Fatalf("changed %v, %d Services", changed, len(again.Objects.Services))
	}
}

// TestYoungFile: a file is read again if it may have changed since without a sign of it,
// which depends on how finely its file system keeps time.
func TestYoungFile(t *testing.T) {
	for _, test := range []struct {
		name     string
		modified time.Duration // after a whole second
		read     time.Duration // after that
		again    bool
	}{
		{"whole seconds, young", 0, 1900 * time.Millisecond, true},
		{"whole seconds, old", 0, 2100 * time.Millisecond, false},
		{"whole milliseconds, young", 10 * time.Millisecond, 1900 * time.Millisecond, true},
		{"nanoseconds, young", 123_456_789, 15 * time.Millisecond, true},
		{"nanoseconds, old", 123_456_789, 25 * time.Millisecond, false},
		{"nanoseconds, of the future", 123_456_789, -time.Second, true},
	} {
		path := filepath.Join(t.TempDir(), "a.yaml")
		write(t, path, service("web", "10.96.0.1"))
		modified := time.Now().Truncate(time.Second).Add(test.modified)
		if err := os.Chtimes(path, modified, modified); err != nil {
			t.Fatal(err)
		}
		f := file{path: path}
		if dirty, _ := f.refresh(0); !dirty {
			t.Fatalf("%s: not read at first", test.name)
		}
		f.readAt = modified.Add(test.read)
		if again, _ := f.refresh(0); again != test.again {
			t.Errorf("%s: read again %v, want %v", test.name, again, test.again)
		}
	}
}
