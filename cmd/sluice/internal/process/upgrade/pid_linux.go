package upgrade

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/node"
)

// pidFile is the path of --pid-file; empty: there is none.
type pidFile string

// aside is where the file is until it is committed.
func (f pidFile) aside() string { return fmt.Sprintf("%s.%d", f, os.Getpid()) }

// prepare writes the file aside, so that a full disk is noticed before anything is taken over.
// No other user may write to its folder, and what lies in its place is not followed: it would be
// overwritten as root.
func (f pidFile) prepare() error {
	if f == "" {
		return nil
	}
	err := node.Private(filepath.Dir(string(f)))
	if err == nil {
		err = f.write()
	}
	if err != nil {
		return fmt.Errorf("--pid-file: %w: give a file in a folder that only Sluice may write to", err)
	}
	return nil
}

func (f pidFile) write() error {
	f.discard() // of a process that has crashed and had our id; not what it links to
	file, err := os.OpenFile(f.aside(), os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	_, err = file.WriteString(strconv.Itoa(os.Getpid()))
	if err = errors.Join(err, file.Close()); err != nil {
		f.discard()
	}
	return err
}

func (f pidFile) commit() error {
	if f == "" {
		return nil
	}
	return os.Rename(f.aside(), string(f))
}

func (f pidFile) discard() {
	if f != "" {
		_ = os.Remove(f.aside())
	}
}

// remove removes the file, unless another process has put its own in its place.
func (f pidFile) remove() {
	if b, err := os.ReadFile(string(f)); err == nil && string(b) == strconv.Itoa(os.Getpid()) {
		_ = os.Remove(string(f))
	}
}
