package transparent

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// TestSync: what is made is there once however often it is requested, also by the next process, is made again if
// another program removes any part of it, and goes without a trace, also that of another process.
func TestSync(t *testing.T) {
	h := testbed.NewHostsT(t, "node")[0]
	h.Enter(t)
	state := func() string {
		out := h.Run(t, "nft", "list", "ruleset")
		for _, family := range []string{"-4", "-6"} {
			out += h.Run(t, "ip", family, "rule") + h.Run(t, "ip", family, "route", "show", "table", "all")
		}
		lines := strings.Split(out, "\n")
		slices.Sort(lines) // tables are listed in the order in which they were made
		return strings.Join(lines, "\n")
	}
	before := state()
	sync := func(r *Rules, on bool) {
		t.Helper()
		for _, ipv6 := range []bool{false, true} {
			testbed.Check(t, r.Sync(ipv6, on))
		}
	}
	const mark = 1 << 31
	first := &Rules{Mark: mark}
	sync(first, false)
	if now := state(); now != before {
		t.Errorf("there is something: %s", now)
	}
	sync(first, true)
	made := state()
	if made == before || !first.Verify() {
		t.Fatalf("there is nothing: %s", made)
	}
	next := &Rules{Mark: mark}
	sync(next, true)
	if now := state(); now != made {
		t.Errorf("after a hand-over\n%s\nbefore\n%s", now, made)
	}
	for _, remove := range [][]string{
		{"nft", "flush", "ruleset"}, {"ip", "rule", "del", "priority", "90"}, {"ip", "-6", "route", "flush", "table",
			"21521"},
	} {
		h.Run(t, remove[0], remove[1:]...)
		if next.Verify() {
			t.Errorf("%v is not noticed", remove)
		}
		sync(next, true)
		if now := state(); now != made || !next.Verify() {
			t.Errorf("after %v\n%s\nbefore\n%s", remove, now, made)
		}
	}
	sync(&Rules{Mark: 1 << 30}, true) // of another flag
	if now := state(); now != strings.ReplaceAll(made, "0x80000000", "0x40000000") {
		t.Errorf("with another mark\n%s\nbefore\n%s", now, made)
	}
	sync(new(Rules), false) // of a process that has crashed
	if now := state(); now != before {
		t.Errorf("it stays: %s", now)
	}
	sync(first, true)
	first.known = [2]bool{}
	sync(first, true)
	testbed.Check(t, Cleanup(t.Context()))
	testbed.Check(t, Cleanup(t.Context()))
	if now := state(); now != before {
		t.Errorf("after Cleanup: %s", now)
	}
}
