package tracking

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// What conntrack 1.4.7 wrote on Linux 6.18, with counters of our own.
const counters = "cpu=0   \tfound=7 invalid=9 insert=0 insert_failed=2 drop=1 early_drop=0 error=3 search_restart=4 " +
	"clash_resolve=5 chaintoolong=0 \ncpu=1   \tfound=0 invalid=0 insert=0 insert_failed=3 drop=0 early_drop=6 " +
	"error=0 search_restart=0 clash_resolve=0 chaintoolong=0 \n"

func TestParse(t *testing.T) {
	got, err := parse(counters)
	if err != nil || got["insert_failed"] != 5 || got["drop"] != 1 || got["early_drop"] != 6 {
		t.Errorf("%v, %v", got, err)
	}
	for _, wrong := range []string{"", "cpu=0 drop=1 early_drop=0", "drop=x early_drop=0 insert_failed=0"} {
		if got, err := parse(wrong); err == nil {
			t.Errorf("%q gave %v", wrong, got)
		}
	}
}

func TestSince(t *testing.T) {
	before := Table{Entries: 10, Most: 1000, Lost: map[string]int{"drop": 3, "early_drop": 1}}
	for _, test := range []struct {
		Table
		want string // "" if it is valid
	}{
		{before, ""},
		{Table{Entries: 899, Most: 1000, Lost: before.Lost}, ""},
		{Table{Entries: 900, Most: 1000, Lost: before.Lost}, "900 of at most 1000"},
		{Table{Most: 1000, Lost: map[string]int{"drop": 5, "early_drop": 1}}, "drop 2"},
		{Table{Most: 1000, Lost: map[string]int{"drop": 3, "early_drop": 2}}, "early_drop 1"},
		{Table{Most: 1000, Lost: map[string]int{"drop": 3, "early_drop": 1, "insert_failed": 1}}, "insert_failed 1"},
	} {
		err := test.Since(before)
		if test.want == "" && err != nil || test.want != "" && (!errors.Is(err, ErrInvalid) ||
			!strings.Contains(err.Error(), test.want)) {
			t.Errorf("%+v: %v, want %q", test.Table, err, test.want)
		}
	}
}

// TestShorten reads the time-outs of a real host back, and its table.
func TestShorten(t *testing.T) {
	tb := testbed.NewT(t, testbed.Config{Pods: 1})
	testbed.Check(t, Shorten(tb.Node))
	for name := range timeouts {
		out, err := tb.Node.Command(t.Context(), "cat", "/proc/sys/net/netfilter/nf_conntrack_"+name).Output()
		if got := strings.TrimSpace(string(out)); err != nil || got != "2" && got != "5" {
			t.Errorf("%s is %s, %v", name, got, err)
		}
	}
	table, err := Read(t.Context(), tb.Node)
	if err != nil || table.Most <= 0 || table.Since(Table{}) != nil {
		t.Errorf("an unused table: %+v, %v, %v", table, err, table.Since(Table{}))
	}
}
