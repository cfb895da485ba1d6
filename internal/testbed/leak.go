package testbed

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// OpenFiles returns what the descriptors of a process point to, such as
// "socket:[1234]" or a path, in no order. Its length is the number of open
// descriptors. The process must be the program's own user's. Linux only.
func OpenFiles(pid int) ([]string, error) { return openFiles(pid) }

// ResidentBytes returns the memory of a process that is in RAM (its RSS). The
// kernel adds up the page tables for it, so the value is exact, and costs
// milliseconds for a large process. Linux only.
func ResidentBytes(pid int) (int64, error) { return residentBytes(pid) }

// NoLeaks fails the test if, when it and its later clean-ups are done, the program
// has more goroutines or open descriptors than at this call. It allows 5 s for
// them to go, since some end after the call that ends them has returned. Tests
// that call it must not run in parallel with other tests. Descriptors are checked on
// Linux only; one that only the garbage collector would close is a leak, except
// for pipes: package net keeps those it splices with until then.
func NoLeaks(t testing.TB) {
	t.Helper()
	// The runtime opens its own epoll instance with the first pollable descriptor,
	// and keeps it.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatalf("look for leaks: %v", err)
	}
	r.Close()
	w.Close()
	before := leakable(t)
	t.Cleanup(func() {
		deadline := time.Now().Add(5 * time.Second)
		for {
			now := leakable(t)
			report := before.compare(now)
			if report == "" {
				return
			}
			notPipe := func(name string) bool { return !strings.HasPrefix(name, "pipe:") }
			if !slices.ContainsFunc(before.opened(now), notPipe) {
				runtime.GC()
			}
			if time.Now().After(deadline) {
				t.Error(report)
				return
			}
			time.Sleep(10 * time.Millisecond) // no event reports that a goroutine or descriptor has gone
		}
	})
}

// inventory is what a program can leak.
type inventory struct {
	goroutines int
	files      []string // nil where they cannot be listed
}

func leakable(t testing.TB) inventory {
	inv := inventory{goroutines: runtime.NumGoroutine()}
	if runtime.GOOS == "linux" {
		var err error
		if inv.files, err = openFiles(os.Getpid()); err != nil {
			t.Fatalf("look for leaks: %v", err)
		}
	}
	return inv
}

// compare returns what there is more of in now, or "".
func (inv inventory) compare(now inventory) string {
	var b strings.Builder
	if n := now.goroutines - inv.goroutines; n > 0 {
		fmt.Fprintf(&b, "leaked %d goroutines; all that run now:\n%s", n, stacks())
	}
	if n := len(now.files) - len(inv.files); n > 0 {
		fmt.Fprintf(&b, "leaked %d descriptors; new are:\n  %s\n", n, strings.Join(inv.opened(now), "\n  "))
	}
	return b.String()
}

// opened returns the files that there are more of in now.
func (inv inventory) opened(now inventory) []string {
	known := make(map[string]int)
	for _, name := range inv.files {
		known[name]++
	}
	var opened []string
	for _, name := range now.files {
		if known[name]--; known[name] < 0 {
			opened = append(opened, name)
		}
	}
	return opened
}

func stacks() []byte {
	buf := make([]byte, 1<<20)
	return buf[:runtime.Stack(buf, true)]
}
