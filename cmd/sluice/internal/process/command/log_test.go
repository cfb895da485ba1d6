package command

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/lines"
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

// TestLogStuck: the log does not wait for a pipe without a reader, and counts the lines that it loses. A log file
// beside it gets lines.
func TestLogStuck(t *testing.T) {
	r, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer r.Close() // first, which ends the write
	path := filepath.Join(t.TempDir(), "sluice.log")
	cfg := config.Log{File: path, AlsoStderr: true}
	var dropped atomic.Uint64
	w, done, err := openLog(pipe, cfg, &dropped)
	if err != nil {
		t.Fatal(err)
	}
	log := newLogger(w, cfg, zap.NewAtomicLevel())
	for i := range 3 * lines.Queued {
		log.Info("a line that fills the pipe soon, as there are many of them", zap.Int("number", i))
	}
	if n := dropped.Load(); n == 0 {
		t.Error("no line is dropped")
	}
	done()
	if text, err := os.ReadFile(path); err != nil || strings.Count(string(text), "\n") < lines.Queued {
		t.Errorf("the file has %d bytes, %v", len(text), err)
	}
}

// TestFatalStuck: an error of the start ends the program, also if standard error takes no more.
func TestFatalStuck(t *testing.T) {
	r, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer r.Close()
	flag := "--no-such-flag" + strings.Repeat("x", 1<<20) // more than a pipe holds
	if code := Main(Build{}, []string{flag}, io.Discard, pipe); code != 1 {
		t.Errorf("exit code %d", code)
	}
}
