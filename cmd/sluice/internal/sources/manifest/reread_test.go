package manifest

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

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
		if dirty, _ := f.refresh(new(pass)); !dirty {
			t.Fatalf("%s: not read at first", test.name)
		}
		f.readAt = modified.Add(test.read)
		if again, _ := f.refresh(new(pass)); again != test.again {
			t.Errorf("%s: read again %v, want %v", test.name, again, test.again)
		}
	}
}
