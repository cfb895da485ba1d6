package ipvs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/sluice-lb/sluice/internal/netfilter"
)

// jumpsAt returns where in a chain of the kernel rules lead to a chain of ours, and how
// many rules of Sluice it begins with.
func jumpsAt(rules []netfilter.Rule, to string) (at []int, leading int) {
	leading = -1
	for i, r := range rules {
		if r.Target == to {
			at = append(at, i)
		}
		if leading < 0 && !sibling(r.Target) {
			leading = i
		}
	}
	if leading < 0 {
		leading = len(rules)
	}
	return at, leading
}

// misplaced returns the input of iptables-restore that puts our jumps before all rules
// that are not of Sluice, but after those that are; nil if they are there.
func (s shape) misplaced(now map[netfilter.Place][]netfilter.Rule) []byte {
	var b bytes.Buffer
	for _, j := range jumps {
		at, leading := jumpsAt(now[netfilter.Place{Table: j.table, Chain: j.from}], s.chain(j.to))
		if len(at) == 1 && at[0] < leading {
			continue
		}
		fmt.Fprintf(&b, "*%s\n", j.table)
		for _, i := range slices.Backward(at) {
			fmt.Fprintf(&b, "-D %s %d\n", j.from, i+1)
			if i < leading {
				leading--
			}
		}
		match := ""
		if j.newOnly {
			match = "-m conntrack --ctstate NEW "
		}
		fmt.Fprintf(&b, "-I %s %d %s-m comment --comment %q -j %s\nCOMMIT\n", j.from, leading+1, match, j.comment, s.chain(j.to))
	}
	return b.Bytes()
}

// check reports what is not as it was just written.
func (s shape) check(now map[netfilter.Place][]netfilter.Rule, rules []byte) error {
	for at, have := range now {
		want := bytes.Count(rules, []byte("\n-A "+at.Chain+" "))
		if strings.HasPrefix(at.Chain, s.prefix) && len(have) != want {
			return fmt.Errorf("chain %s of table %s has %d rules right after %d were written: another program is changing it", at.Chain, at.Table, len(have), want)
		}
	}
	if len(s.misplaced(now)) > 0 {
		return errors.New("the jumps that were just written are not where they belong: another program is changing them")
	}
	return nil
}

// sameRules reports whether our chains hold the rules that they held, and the jumps to
// them are in place.
func (s shape) sameRules(now, was map[netfilter.Place][]netfilter.Rule) bool {
	for at, rules := range was {
		if strings.HasPrefix(at.Chain, s.prefix) && !slices.Equal(rules, now[at]) {
			return false
		}
	}
	return len(s.misplaced(now)) == 0
}

func (e *Engine) verify(ctx context.Context) (bool, error) {
	if !e.used {
		return true, nil
	}
	if _, err := e.probe(ctx); err != nil {
		return false, err
	}
	if !e.known {
		return false, nil
	}
	t, err := open(e.IPv6, &e.writes)
	if err != nil {
		return false, err
	}
	defer t.Close()
	intact, err := e.intact(ctx, t)
	if intact && err == nil && !e.want.committed() { // something drains
		if err = e.removeOld(t); err == nil {
			err = e.flows.delete(e.IPv6)
		}
	}
	e.known = intact && err == nil
	return intact, err
}

// intact reports whether the kernel holds what was written.
func (e *Engine) intact(ctx context.Context, t table) (bool, error) {
	now, err := e.look(ctx)
	if err != nil || !e.shape().sameRules(now, e.rules) {
		return false, err
	}
	for _, name := range setOrder {
		have, err := e.shape().set(name).Read()
		if errors.Is(err, syscall.ENOENT) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		if !e.want.sets[name].equal(have) {
			return false, nil
		}
	}
	onOurs, up, err := onInterface(e.IPv6)
	if err != nil || !up || !e.want.addresses.equal(slices.Collect(maps.Keys(onOurs))) {
		return false, err
	}
	have, err := t.read(func(x key) bool { return e.servers[x] != nil })
	if err != nil {
		return false, err
	}
	return maps.EqualFunc(have, e.servers, func(a, b *held) bool {
		return a.same(b.server) && maps.Equal(a.weights, b.weights)
	}), nil
}
