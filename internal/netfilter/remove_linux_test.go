package netfilter

import (
	"os"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// tables returns what iptables saves in both backends, without counters, and sets.
func (l *lab) tables() string {
	var out []string
	program := Program(l.IPv6)
	for line := range strings.Lines(l.run(program + "-nft-save; " + program + "-legacy-save; ipset save")) {
		if line, _, _ = strings.Cut(strings.TrimSpace(line), " ["); !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

// TestRemove: nothing is left but what others have, and a table of nf_tables goes if
// writing has made it.
func TestRemove(t *testing.T) {
	eachVariant(t, func(t *testing.T, l *lab) {
		l.run("IPT -N THEIRS; IPT -A THEIRS -j RETURN; ipset create theirs hash:ip")
		before := l.tables()
		l.fillAndWrite()
		l.run("IPT -A THEIRS -j " + inFilter.Chain)
		var saved string
		for range 2 {
			if err := Remove(t.Context(), testLayout(l.IPv6, nil), func(s string) { saved += s }); err != nil {
				t.Fatal(err)
			}
		}
		if !strings.Contains(saved, "-A "+inNat.Chain+" ") {
			t.Errorf("what was there is not passed on: %q", saved)
		}
		after := l.tables()
		if l.Legacy { // an empty table of the legacy backend stays
			before, after = rulesOf(before), rulesOf(after)
		}
		if after != before {
			t.Errorf("after Remove\n%s\nwant\n%s", after, before)
		}
	})
}

// rulesOf returns the rules, and the chains that are not the kernel's, of a saved text.
func rulesOf(save string) string {
	var out []string
	for line := range strings.Lines(save) {
		if strings.HasPrefix(line, "-A") || strings.HasPrefix(line, ":") &&
			strings.HasSuffix(strings.TrimSpace(line), " -") || strings.HasPrefix(line, "create") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

// TestRemoveKeepsTheMark: a table of nf_tables stays while a sibling has chains in it,
// and while another program has; the mark stays for the sibling only.
func TestRemoveKeepsTheMark(t *testing.T) {
	eachVariant(t, func(t *testing.T, l *lab) {
		if l.Legacy {
			t.Skip("tables of the legacy backend have no marks")
		}
		l.fillAndWrite()
		l.run("IPT -t nat -N TEST-SIBLING; IPT -t mangle -N THEIRS")
		if err := Remove(t.Context(), testLayout(l.IPv6, nil), nil); err != nil {
			t.Fatal(err)
		}
		for table, want := range map[string]string{"nat": "TEST-CREATED-TABLE TEST-SIBLING", "mangle": "THEIRS",
			"filter": ""} {
			chains, err := nftChains(nfnl.Family(l.IPv6), table)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, c := range chains {
				if !c.Base {
					names = append(names, c.Name)
				}
			}
			if got := strings.Join(names, " "); got != want {
				t.Errorf("chains of table %s: %q, want %q", table, got, want)
			}
		}
	})
}

// TestRemoveChains: chains of a layout go from both backends, and are counted.
func TestRemoveChains(t *testing.T) {
	eachVariant(t, func(t *testing.T, l *lab) {
		layout := testLayout(l.IPv6, nil)
		layout.Own = func(_, chain string) bool { return chain == "OLD" || chain == "OLDER" }
		for _, backend := range []string{"-nft", "-legacy"} {
			p := Program(l.IPv6) + backend
			l.run(p + " -N OLD; " + p + " -N OLDER; " + p + " -A OLD -j OLDER; " + p + " -A INPUT -j OLD; " + p +
				" -A INPUT -j ACCEPT")
		}
		for _, want := range []int{4, 0} {
			if n, err := RemoveChains(t.Context(), layout, nil); n != want || err != nil {
				t.Errorf("RemoveChains = %d, %v, want %d", n, err, want)
			}
		}
		if save := l.tables(); strings.Contains(save, "OLD") || strings.Count(save, "-A INPUT -j ACCEPT") != 2 {
			t.Errorf("after RemoveChains:\n%s", save)
		}
	})
}

// TestTry: what a host takes leaves nothing behind, and what it does not take is an error
// that says which rule.
func TestTry(t *testing.T) {
	eachVariant(t, func(t *testing.T, l *lab) {
		l.run("IPT -t mangle -L -n; IPT -t nat -L -n; IPT -L -n") // so that the tables are there
		before := rulesOf(l.tables())
		for _, bad := range []bool{false, true} {
			l.restart()
			l.fill()
			l.jumps = nil
			if bad {
				l.SetChain(inFilter, []string{"-m nonsense -j RETURN"})
			}
			err := l.Try(t.Context())
			if bad != (err != nil) || bad && !strings.Contains(err.Error(), "nonsense") {
				t.Errorf("Try with a bad rule %v: %v", bad, err)
			}
			if after := rulesOf(l.tables()); strings.ReplaceAll(after, ":TEST-CREATED-TABLE -\n", "") != before {
				t.Errorf("left behind:\n%s", after)
			}
		}
	})
}

// TestRemoveWithoutPrograms: what iptables-nft has written is removed without it, and nothing else.
func TestRemoveWithoutPrograms(t *testing.T) {
	eachVariant(t, func(t *testing.T, l *lab) {
		if l.Legacy {
			t.Skip("the legacy backend needs its program")
		}
		l.run("IPT -N THEIRS; IPT -A THEIRS -p tcp -j RETURN; IPT -A INPUT -j THEIRS; IPT -t nat -N TESTER; ipset create theirs hash:ip")
		before, path := l.tables(), os.Getenv("PATH")
		for name, remove := range map[string]func() error{
			"Remove": func() error { return Remove(t.Context(), testLayout(l.IPv6, nil), nil) },
			// What another ruleset of the prefix has goes, too: none can be in use.
			"Retire": func() error {
				return Retire(t.Context(), testLayout(l.IPv6, nil), &Lease{IPv6: l.IPv6, Prefix: "TEST-"})
			},
		} {
			l.restart()
			l.fillAndWrite()
			l.run("IPT -A THEIRS -j " + inFilter.Chain + "; IPT -A INPUT -p udp -g " + inFilter.Chain)
			if name == "Retire" {
				l.run("IPT -t nat -N TEST-SIBLING; IPT -t nat -A OUTPUT -j TEST-SIBLING; IPT -t nat -A TEST-SIBLING -j " + inNat.Chain)
			}
			t.Setenv("PATH", t.TempDir())
			for range 2 {
				if err := remove(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			t.Setenv("PATH", path)
			if after := l.tables(); after != before {
				t.Errorf("after %s\n%s\nwant\n%s", name, after, before)
			}
		}
	})
}

// TestCheckOrphans: chains of the legacy backend that no installed program can show are named.
func TestCheckOrphans(t *testing.T) {
	eachVariant(t, func(t *testing.T, l *lab) {
		l.fillAndWrite()
		layout := testLayout(l.IPv6, nil)
		if err := checkOrphans(layout); err != nil {
			t.Errorf("with all programs: %v", err)
		}
		t.Setenv("PATH", t.TempDir())
		err := checkOrphans(layout)
		if named := err != nil && strings.Contains(err.Error(), "mangle, nat, filter") &&
			strings.Contains(err.Error(), l.Command()); named != l.Legacy || err != nil != l.Legacy {
			t.Errorf("without programs: %v", err)
		}
		layout.Prefix = "OTHER-"
		if err := checkOrphans(layout); err != nil {
			t.Errorf("for a prefix that is not there: %v", err)
		}
	})
}
