package netfilter

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
)

// Layout says what of one address family belongs to a ruleset. It does not change.
type Layout struct {
	IPv6 bool

	// Prefix is how the names of all chains of this program begin, those of its other
	// rulesets included, as in "SLUICE-".
	Prefix string

	// Own reports whether a chain is one of this ruleset.
	Own func(table, chain string) bool

	// Tables are those that the ruleset may have chains in, in the order of writing.
	Tables []Table

	// Sets are the sets that rules match, in groups. They grow in this order before
	// rules are written, and shrink in the reverse order after.
	Sets []SetGroup

	// Inner are sets that the caller of Write changes itself, by Grow and Shrink, when all
	// that is added is there.
	Inner []Set

	// Lease, if it is not nil, is what the jumps match, and nothing beyond them. Write and Verify renew it.
	Lease *Lease

	// Counters counts what is done, if it is not nil.
	Counters *Counters
}

// Table is a table that a ruleset has chains in.
type Table struct {
	Name string

	// Outer says that the table's new rules are written before the other tables, and
	// its old ones removed after them. Each of the other tables is one transaction.
	Outer bool
}

// SetGroup is a number of sets. Before anything that follows is written, packets that
// have read the sets of a group before they grew are waited for.
type SetGroup struct {
	Sets []Set

	// Late says that packets may read these sets after those of the next groups. Then
	// they shrink only when packets that have read the others are gone.
	Late bool
}

// Counters counts what rulesets do. It may be read by any goroutine.
type Counters struct {
	Restores atomic.Uint64 // runs of iptables-restore
	Failures atomic.Uint64 // of them, those that failed
	SetOps   atomic.Uint64 // netlink messages that changed the members of a set

	rules atomic.Pointer[map[string]int]
}

// Rules returns how many rules the chains of each table have, as written last; nil before
// that. It must not be changed.
func (c *Counters) Rules() map[string]int {
	if rules := c.rules.Load(); rules != nil {
		return *rules
	}
	return nil
}

// Ruleset is all that a part of this program has in netfilter in one address family:
// chains, the jumps to them from the kernel's chains, and the members of sets. It is
// edited, which touches no kernel, and then written; Write finds what differs from what
// it wrote last, in time proportional to what was edited. It is used by one goroutine,
// and works in the network namespace of the calling thread.
type Ruleset struct {
	program *IPTables
	layout  Layout

	chains  map[Place]*chain
	touched []Place        // chains edited since the last Write, each once
	counts  map[string]int // rules by table, as written last
	spine   []Place        // chains that lead to buckets
	jumps   []Jump
	moved   bool // a jump was added since the last Write
	waiting bool // packets may have read sets as they were before they changed
	members map[string]*Refs[Member]

	state    state
	found    held   // what was there, while state is learned
	held     held   // how the kernel held what was written last
	verified uint32 // generation of nf_tables when all was last found as held; 0: never
}

// state is what a ruleset knows of the kernel.
type state uint8

const (
	unknown state = iota
	learned       // what is there has been read
	known         // what was written last is there
)

// chain is a chain of ours as it is to be, and as it was written last.
type chain struct {
	rules     []string
	gone      bool
	unordered bool

	touched bool
	was     []string // before the first edit since the last Write
	fresh   bool     // it was not there then
}

// NewRuleset returns a ruleset without chains, jumps and members.
func NewRuleset(program *IPTables, layout Layout) *Ruleset {
	if layout.Counters == nil {
		layout.Counters = new(Counters)
	}
	r := &Ruleset{
		program: program, layout: layout,
		chains: make(map[Place]*chain), counts: make(map[string]int), members: make(map[string]*Refs[Member]),
	}
	for _, s := range layout.sets() {
		r.members[s.Name] = new(Refs[Member])
	}
	return r
}

// SetChain makes the rules of a chain, in this order, be these, and makes the chain if
// it is not there. A rule is written as iptables takes it, without "-A" and the name of
// the chain. The list is kept.
func (r *Ruleset) SetChain(at Place, rules []string) {
	if c := r.chains[at]; c != nil && !c.gone && slices.Equal(c.rules, rules) {
		return
	}
	c := r.edit(at)
	c.rules, c.gone, c.unordered = rules, false, false
}

// DeleteChain removes a chain, to which no rule is to lead any more.
func (r *Ruleset) DeleteChain(at Place) {
	if c := r.chains[at]; c == nil || c.gone {
		return
	}
	c := r.edit(at)
	c.rules, c.gone = nil, true
}

// AddRule adds a rule to a chain in which the order does not matter, and makes the chain
// if it is not there. A rule that is added twice is there twice.
func (r *Ruleset) AddRule(at Place, rule string) {
	c := r.edit(at)
	c.rules, c.gone, c.unordered = append(c.rules, rule), false, true
}

// DeleteRule deletes a rule that AddRule has added.
func (r *Ruleset) DeleteRule(at Place, rule string) {
	c := r.edit(at)
	if i := slices.Index(c.rules, rule); i >= 0 {
		c.rules = slices.Delete(c.rules, i, i+1)
	}
}

// Bucket is a chain that is there while it has rules, whose order does not matter, with
// the rule by which another chain leads to it. To divide rules among buckets makes both
// packets and changes meet fewer of them.
type Bucket struct {
	Table, Chain string
	From         string // the chain that leads to it
	Lead         string // the rule there
}

// BucketOf returns the bucket of an address, one of n below a chain, a power of two: by its last
// bits, which differ most, as cluster IPs are given out of one range.
func BucketOf(table, chain string, addr netip.Addr, n byte) Bucket {
	b := addr.AsSlice()
	end := len(b) - 1
	last := b[end] % n
	clear(b)
	b[end] = last
	bits, _ := netip.AddrFromSlice(b)
	b[end] = n - 1
	mask, _ := netip.AddrFromSlice(b)
	name := fmt.Sprintf("%s-%02d", chain, last)
	return Bucket{table, name, chain, fmt.Sprintf("-d %s/%s -j %s", bits, mask, name)}
}

// AddToBucket adds a rule to a bucket.
func (r *Ruleset) AddToBucket(b Bucket, rule string) {
	at, from := Place{b.Table, b.Chain}, Place{b.Table, b.From}
	if !r.Has(at) {
		r.AddRule(from, b.Lead)
	}
	if !slices.Contains(r.spine, from) {
		r.spine = append(r.spine, from)
	}
	r.AddRule(at, rule)
}

// DeleteFromBucket deletes a rule that AddToBucket has added.
func (r *Ruleset) DeleteFromBucket(b Bucket, rule string) {
	at := Place{b.Table, b.Chain}
	r.DeleteRule(at, rule)
	if len(r.chains[at].rules) == 0 {
		r.DeleteRule(Place{b.Table, b.From}, b.Lead)
		r.DeleteChain(at)
	}
}

// edit returns a chain that is about to change, and notes how it was written last.
func (r *Ruleset) edit(at Place) *chain {
	c := r.chains[at]
	if c == nil {
		c = &chain{fresh: true, gone: true}
		r.chains[at] = c
	}
	if !c.touched {
		c.touched, c.was = true, slices.Clone(c.rules)
		r.touched = append(r.touched, at)
	}
	return c
}

// Has reports whether the ruleset has a chain.
func (r *Ruleset) Has(at Place) bool {
	c := r.chains[at]
	return c != nil && !c.gone
}

// AddJump adds a jump, unless the ruleset has it already.
func (r *Ruleset) AddJump(j Jump) {
	if !slices.Contains(r.jumps, j) {
		r.jumps, r.moved = append(r.jumps, j), true
	}
}

// Member adds n references to a member of a set, or takes some away if n is negative. A
// member is in the set while it has references.
func (r *Ruleset) Member(set string, m Member, n int32) { r.members[set].Add(m, n) }

// Members returns the members of a set. They are not to be changed.
func (r *Ruleset) Members(set string) *Refs[Member] { return r.members[set] }

// Clear removes all chains and members, but not jumps. What is made anew before the next
// Write stays as it is in the kernel.
func (r *Ruleset) Clear() {
	for at := range r.chains {
		r.DeleteChain(at)
	}
	for _, m := range r.members {
		m.ReleaseAll()
	}
}

// Known reports whether the kernel is known to be as the last Write left it: there was
// one, it did not fail, and Verify has found no difference since.
func (r *Ruleset) Known() bool { return r.state == known }

// Forget makes the next Write read what the kernel holds, and write everything.
func (r *Ruleset) Forget() { r.state = unknown }

// restore runs iptables-restore once, and counts it.
func (r *Ruleset) restore(ctx context.Context, text []byte) error {
	if len(text) == 0 {
		return nil
	}
	r.verified = 0
	r.layout.Counters.Restores.Add(1)
	err := r.program.Restore(ctx, r.layout.Prefix, text)
	if err != nil {
		r.layout.Counters.Failures.Add(1)
	}
	return err
}

// String returns the chains as input of iptables-restore that writes them all.
func (r *Ruleset) String() string {
	text, _ := r.script(true)
	return string(text)
}
