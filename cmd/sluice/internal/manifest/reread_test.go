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
