package main

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// archive writes a cpio archive as the kernel unpacks it at boot (its
// Documentation/driver-api/early-userspace/buffer-format.rst). Archives may follow
// one another; a later file replaces an earlier one.
type archive struct {
	w    *bufio.Writer
	made map[string]bool // names that have been written
	next int             // inode number
	err  error           // the first one; what comes after is not written
}

func newArchive(w io.Writer) *archive {
	return &archive{w: bufio.NewWriterSize(w, 1<<20), made: map[string]bool{}}
}

// entry writes a header, its name and data, each padded to four bytes.
func (a *archive) entry(name string, mode uint32, size int64, data io.Reader) {
	if a.err != nil {
		return
	}
	a.next++
	const newc = "070701"
	h := fmt.Sprintf(newc+"%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.next, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0, name)
	a.w.WriteString(h + strings.Repeat("\x00", -len(h)&3))
	n, err := io.Copy(a.w, data)
	if err == nil && n != size {
		err = fmt.Errorf("has %d bytes, had %d", n, size)
	}
	if err != nil {
		a.err = fmt.Errorf("pack %s: %w", name, err)
		return
	}
	a.w.WriteString(strings.Repeat("\x00", int(-size&3)))
}

// folder makes a folder and those above it.
func (a *archive) folder(name string) {
	name = strings.Trim(name, "/")
	if name == "." || name == "" || a.made[name] {
		return
	}
	a.folder(filepath.Dir(name))
	a.made[name] = true
	a.entry(name, 0o040755, 0, strings.NewReader(""))
}

// link makes a symbolic link, unless there is something of its name.
func (a *archive) link(name, target string) {
	name = strings.Trim(name, "/")
	if a.made[name] {
		return
	}
	a.folder(filepath.Dir(name))
	a.made[name] = true
	a.entry(name, 0o120777, int64(len(target)), strings.NewReader(target))
}

// text makes a file.
func (a *archive) text(name, content string) {
	a.folder(filepath.Dir(name))
	a.entry(strings.Trim(name, "/"), 0o100644, int64(len(content)), strings.NewReader(content))
}

// file copies a file of this machine, unless there is one of its name.
func (a *archive) file(name, from string) {
	name = strings.Trim(name, "/")
	if a.err != nil || a.made[name] {
		return
	}
	f, err := os.Open(from)
	if err != nil {
		a.err = err
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		a.err = err
		return
	}
	a.folder(filepath.Dir(name))
	a.made[name] = true
	a.entry(name, 0o100000|uint32(info.Mode().Perm()), info.Size(), f)
}

// tree copies the regular files below a folder of this machine.
func (a *archive) tree(name, from string) {
	if a.err != nil {
		return
	}
	a.err = filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		a.file(filepath.Join(name, rel), path)
		return a.err
	})
}

// close ends the archive.
func (a *archive) close() error {
	a.entry("TRAILER!!!", 0, 0, strings.NewReader(""))
	if a.err != nil {
		return a.err
	}
	return a.w.Flush()
}
