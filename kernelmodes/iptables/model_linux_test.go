package iptables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// TestModel walks through random sets of Services. After each change the kernel holds
// what a host would hold that has never seen another set.
func TestModel(t *testing.T) {
	const walks = 2 // side by side, since half of the time is the kernel's grace periods
	for walk := range walks {
		t.Run(strconv.Itoa(walk), func(t *testing.T) {
			t.Parallel()
			testbed.EachIPTables(t, func(t *testing.T, h *testbed.Host, v testbed.IPTables) {
				t.Parallel()
				changes := lab.Changes() / walks
				if v.Legacy {
					changes /= 5
				}
				walkModel(t, h, v, changes)
			})
		})
	}
}

func walkModel(t *testing.T, h *testbed.Host, v testbed.IPTables, changes int) {
	seed := rand.Uint64()
	t.Logf("seed %d, %d changes", seed, changes)
	m := &model{lab.Model{Rand: rand.New(rand.NewPCG(seed, 0)), IPv6: v.IPv6}, v}
	e := engineOf(v)
	var before map[int]lb.Service
	for n := range changes {
		m.Change()
		switch m.Rand.IntN(40) {
		case 0:
			e = engineOf(v) // another process
		case 1:
			if e.content == nil || !e.content.Known() {
				break
			}
			m.damage(t, h, e.content)
			if verifyOn(t, h, e) {
				t.Fatalf("change %d: the damage was not noticed", n)
			}
		}
		services := m.Services()
		d := whole(services...)
		if m.Rand.IntN(4) > 0 && e.content != nil {
			d = m.Since(before)
		}
		before = maps.Clone(m.Now)
		h.DoT(t, func() error { return e.Sync(t.Context(), d, m.Node) })
		compare(t, save(t, h, v), e, m.Node, services)
		if t.Failed() {
			t.Fatalf("change %d", n)
		}
	}
	if !verifyOn(t, h, e) {
		t.Error("not verified at the end")
	}
}

// compare compares the output of iptables-save with what Services need.
func compare(t *testing.T, saved string, e *Engine, node lb.Node, services []lb.Service) {
	t.Helper()
	s := e.shape(node)
	want := make(map[netfilter.Place][]string)
	if e.content != nil { // else it leaves nothing
		want = rulesIn(dump(rendered(s, services...)))
	}
	have := rulesIn(saved)
	for at := range want {
		if got := have[at]; !ours(at.Table, at.Chain) { // what other programs put behind our jumps is theirs
			have[at] = got[:min(len(got), len(want[at]))]
		}
		if !slices.Equal(have[at], want[at]) {
			t.Errorf("%s:\n  %s\nwant\n  %s", at, strings.Join(have[at], "\n  "), strings.Join(want[at], "\n  "))
		}
	}
	for at := range have {
		if _, ok := want[at]; !ok && ours(at.Table, at.Chain) {
			t.Errorf("%s has %q, and is not wanted", at, have[at])
		}
	}
}

// rulesIn returns the rules of chains in a form that is the same for every writer;
// those of chains where the order does not matter are sorted. Empty chains of the
// kernel are left out.
func rulesIn(save string) map[netfilter.Place][]string {
	out := make(map[netfilter.Place][]string)
	table := ""
	for line := range strings.Lines(save) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, ":SLUICE"):
			name, _, _ := strings.Cut(line[1:], " ")
			at := netfilter.Place{Table: table, Chain: name}
			out[at] = append(out[at], []string{}...)
		case strings.HasPrefix(line, "-A "):
			w := netfilter.Words(line)
			at := netfilter.Place{Table: table, Chain: w[1]}
			out[at] = append(out[at], normal(w[2:]))
		}
	}
	for at, rules := range out {
		for _, unordered := range []string{chainAddresses, chainNodePorts, chainNoAddress, chainNoNode, chainStale} {
			if strings.HasPrefix(at.Chain, unordered) {
				slices.Sort(rules)
			}
		}
	}
	return out
}

// normal writes the words of a rule in one of the ways in which it can be written.
func normal(w []string) string {
	for i := range w {
		switch w[i] {
		case "--or-mark":
			w[i], w[i+1] = "--set-xmark", w[i+1]+"/"+w[i+1]
		case "--xor-mark":
			w[i], w[i+1] = "--set-xmark", w[i+1]+"/0x0"
		case "--probability":
			p, _ := strconv.ParseFloat(w[i+1], 64)
			w[i+1] = fmt.Sprintf("%.6f", p)
		}
	}
	w = slices.DeleteFunc(w, func(s string) bool {
		return s == "--rsource" || s == "--mask" || s == "255.255.255.255" || s == "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
	})
	slices.Sort(w)
	return strings.Join(w, " ")
}

// model is Services that change, on a host with one backend of iptables.
type model struct {
	lab.Model
	v testbed.IPTables
}

// damage does what other programs do to rules.
func (m *model) damage(t *testing.T, h *testbed.Host, of *content) {
	c := m.v.Command()
	list := []string{
		" -t nat -F", " -t filter -F", " -t nat -F OUTPUT", " -t nat -F PREROUTING", " -D FORWARD 2",
		" -t nat -D SLUICE-SERVICES 1", " -t nat -F SLUICE-POSTROUTING",
		" -t filter -I SLUICE-FORWARD -j ACCEPT", " -t nat -A POSTROUTING -j SLUICE-POSTROUTING",
		" -t nat -I PREROUTING -p tcp --dport 9 -j ACCEPT", " -t nat -I OUTPUT -p tcp -j ACCEPT",
		" -t nat -N SLUICE-SVC-MINE; IPT -t nat -A SLUICE-SVC-MINE -j ACCEPT",
		" -t nat -N MINE; IPT -t nat -A MINE -j SLUICE-SERVICES; IPT -t nat -D PREROUTING 1; " +
			"IPT -t nat -F MINE; IPT -t nat -X MINE",
	}
	for _, u := range of.units {
		for name := range u.chains {
			list = append(list, " -t nat -F "+name, " -t nat -R "+name+" 1 -j RETURN", " -t nat -A "+name+" -j RETURN")
		}
	}
	slices.Sort(list)
	shell(t, h, strings.ReplaceAll("IPT"+list[m.Rand.IntN(len(list))], "IPT", c))
}
