package command

import (
	"os"
	"path/filepath"
	"testing"
)

// TestLogFileLimit: a file that has grown to its limit starts anew.
func TestLogFileLimit(t *testing.T) {
	dir := t.TempDir()
	f := &logFile{name: filepath.Join(dir, "small.log"), limit: 10}
	if err := f.open(); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"first\n", "2nd\n", "third\n"} {
		if n, err := f.Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("Write = %d, %v", n, err)
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(f.name); err != nil || string(text) != "third\n" {
		t.Errorf("the small file has %q, %v", text, err)
	}
}
