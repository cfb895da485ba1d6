package upgrade

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestPIDFile: the file holds our id once it is committed, and links in its place are
// replaced, not followed.
func TestPIDFile(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	testbed.Check(t, os.WriteFile(victim, []byte("mine"), 0o600))
	f := pidFile(filepath.Join(dir, "sluice.pid"))
	for _, link := range []string{f.aside(), string(f)} {
		testbed.Check(t, os.Symlink(victim, link))
	}
	testbed.Check(t, f.prepare())
	testbed.Check(t, f.commit())
	for path, want := range map[string]string{victim: "mine", string(f): strconv.Itoa(os.Getpid())} {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v, want %q", path, got, err, want)
		}
	}
	f.remove()
	if _, err := os.Lstat(string(f)); !os.IsNotExist(err) {
		t.Errorf("the file is there after its removal: %v", err)
	}
}

// TestPIDFileFolder: a folder that others may write to is refused.
func TestPIDFileFolder(t *testing.T) {
	dir := t.TempDir()
	for name, loosen := range map[string]func() error{
		"mode":       func() error { return os.Chmod(dir, 0o777) },
		"other user": func() error { return os.Chown(dir, 65534, 65534) },
	} {
		testbed.Check(t, os.Chmod(dir, 0o700))
		testbed.Check(t, loosen())
		f := pidFile(filepath.Join(dir, "sluice.pid"))
		if f.prepare() == nil {
			t.Errorf("%s: the folder is accepted", name)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("%s: left behind: %v, %v", name, entries, err)
		}
	}
}
