package supervise

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestShrink: pages of the program that the supervisor does not use leave its resident memory.
func TestShrink(t *testing.T) {
	all, err := os.ReadFile("/proc/self/exe") // which fills the page cache
	if err != nil {
		t.Fatal(err)
	}
	before := resident(t)
	shrink()
	after := resident(t)
	t.Logf("%d kB of files before, %d kB after; the program has %d kB", before, after, len(all)/1024)
	if after >= before {
		t.Errorf("%d kB of files are resident, %d kB were", after, before)
	}
}

// resident returns how many kB of files are in this process's memory.
func resident(t *testing.T) (kB int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(text), "\nRssFile:")
	if _, err := fmt.Sscan(line, &kB); err != nil {
		t.Fatalf("read RssFile: %v", err)
	}
	return kB
}
