package nft

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter"
)

// Field is a field of a key or of a map's data. It fills whole registers of four bytes.
type Field uint8

// The fields that keys are made of.
const (
	Address   Field = iota // of the table's family
	Protocol               // of the transport layer
	Port                   // of TCP, UDP or SCTP
	Mark                   // any number of 32 bits
	Interface              // the name of an interface
	NFProto                // the address family: NFPROTO_IPV4 or NFPROTO_IPV6 as uint8
)

// Set is a set, a map or a verdict map of a table. It does not change. For each chain whose rules use a map
// the kernel walks all its elements when the rule is written, so that what many chains use is to be divided
// among several maps; not among very many, since it finds a set by reading a list of names.
type Set struct {
	Name string
	Key  []Field

	// Data makes it a map, and Verdicts one whose data are the names of chains to go to.
	Data     []Field
	Verdicts bool

	// Prefixes says that the last field of a key is a range of addresses, all of which differ
	// from those of other elements with the same key before it. There is one before, be it
	// NFProto: sets of one field are trees, which before Linux 6.2 may refuse, with EEXIST, a
	// range that grows, since the old one goes in the same transaction (nft_set_rbtree.c, cured by
	// babc3dc9524f in 5.18, and c9e6978e2725).
	Prefixes bool

	// Dynamic says that rules add elements, which time out. They are neither verified nor lost
	// when the table is replaced. Size is how many there may be.
	Dynamic bool
	Size    uint32

	// Large says that there may be many elements, without Prefixes. The kernel makes room for at least twice as many
	// as there are when the set is written, and the set is made anew, with the rules that use it, when they are more:
	// a hash that has to grow in the midst of a transaction takes several times as long (rhashtable of Linux 6.18,
	// whose worker waits for the end of that).
	Large bool

	// Rank orders the changes of what one packet reads after the other: a set of a higher rank
	// grows in a transaction before those of lower ones change, and shrinks in one after them,
	// and packets that have begun to read rules before are awaited in between. Chains change
	// with rank 0. So a packet for which both what was and what is to be comes to the same
	// never finds anything else in between. Most changes concern one rank, and are one transaction.
	Rank int
}

// Element is an element of a set: registers, as [Key] makes them.
type Element struct {
	Key  string
	End  string // of a range: the last key in it
	Data string // of a map, or the name of a chain
}

// Hook is where packets get into a base chain (nft(8), "CHAINS").
type Hook struct {
	Type     string // "filter", "nat"
	Number   uint32 // unix.NF_INET_PRE_ROUTING and so on
	Priority int32

	// New has rules see the first packets of flows only, as those of nat do. They are in a chain of their own then, to
	// which the only one of the base chain leads: what other packets cost is to look at it.
	New bool
}

// Counters counts what tables do. It may be read by any goroutine.
type Counters struct {
	Transactions atomic.Uint64
	Failures     atomic.Uint64 // of them, those that failed
	Rules        atomic.Int64  // as written last
	Elements     atomic.Int64  // as written last, without those of dynamic sets
}

// Table is a table of nf_tables of one address family. It is used by one goroutine, and works
// in the network namespace of the calling thread.
type Table struct {
	Name string
	IPv6 bool

	// Lifetime is how long rules match after the first Write or the last Renew, in whole milliseconds; 0: for ever.
	Lifetime time.Duration

	// Counters counts what is done, if it is not nil.
	Counters *Counters

	sets    []*set // in the order in which they were added
	named   map[string]*set
	chains  map[string]*chain
	touched []string // chains edited since the last Write, each once

	known    bool              // what was written last is there, but for what is damaged
	damaged  bool              // some rules or elements are not, which are edited as far as they are not
	held     map[string]string // handles of the rules of each chain, as read back
	handle   string            // of the kernel's table
	gone     bool              // Verify has found that the kernel has no such table
	verified uint32            // generation of nf_tables when all was last found as written; 0: never
}

type set struct {
	Set
	elements netfilter.Refs[packed]
	fresh    bool // it was not there at the last Write
	outgrown bool // it is to be made anew
	gone     bool
	room     int // for how many elements the kernel has made it, if it is large
}

// chain is a chain as it is to be, and whether the kernel has it.
type chain struct {
	hook    *Hook
	rules   []Rule
	leased  bool // its rules match for the table's lifetime
	gone    bool
	touched bool
	present bool
	had     int // rules as written last
}

// AddSet adds a set, unless the table has it.
func (t *Table) AddSet(s Set) {
	if x := t.named[s.Name]; x != nil {
		x.gone = false
		return
	}
	x := &set{Set: s, fresh: true}
	if t.named == nil {
		t.named = make(map[string]*set)
	}
	t.sets, t.named[s.Name] = append(t.sets, x), x
}

// DeleteSet removes a set, which no rule is to use any more.
func (t *Table) DeleteSet(name string) {
	if x := t.named[name]; x != nil {
		x.gone = true
		x.elements.ReleaseAll()
	}
}

// HasSet reports whether the table has, or is to have, a set.
func (t *Table) HasSet(name string) bool { return t.named[name] != nil && !t.named[name].gone }

// Add adds n references to an element of a set, or takes some away if n is negative. An element
// is there while it has references. Two elements of a map may have one key only while one of
// them has none.
func (t *Table) Add(set string, e Element, n int32) { t.named[set].elements.Add(pack(e), n) }

// SetChain makes the rules of a chain be these, and makes the chain if it is not there. hook is
// nil, or as it was when the chain was made. The list is kept.
func (t *Table) SetChain(name string, hook *Hook, rules []Rule) {
	if hook != nil && hook.New {
		t.setChain(name, hook, false, []Rule{NewRule(t.IPv6).New().GotoChain(name + newSuffix).Rule("")})
		t.setChain(name+newSuffix, nil, true, rules)
		return
	}
	t.setChain(name, hook, hook != nil, rules)
}

// newSuffix ends the name of a chain with the rules for the first packets of flows.
const newSuffix = "-new"

func (t *Table) setChain(name string, hook *Hook, leased bool, rules []Rule) {
	c := t.chains[name]
	if c != nil && !c.gone && slices.Equal(c.rules, rules) {
		return
	}
	if c == nil {
		if t.chains == nil {
			t.chains = make(map[string]*chain)
		}
		c = new(chain)
		t.chains[name] = c
	}
	t.touch(name, c)
	c.hook, c.rules, c.leased, c.gone = hook, rules, leased, false
}

// DeleteChain removes a chain, to which nothing is to lead any more.
func (t *Table) DeleteChain(name string) {
	c := t.chains[name]
	if c == nil || c.gone {
		return
	}
	t.touch(name, c)
	c.rules, c.gone = nil, true
	if c.hook != nil && c.hook.New {
		t.DeleteChain(name + newSuffix)
	}
}

func (t *Table) touch(name string, c *chain) {
	if !c.touched {
		c.touched = true
		t.touched = append(t.touched, name)
	}
}

// Known reports whether the kernel is known to be as the last Write left it: there was one, it
// did not fail, and Verify has found no difference since.
func (t *Table) Known() bool { return t.known && !t.damaged }

// Forget makes the next Write replace the whole table.
func (t *Table) Forget() { t.known = false }

// settle is called when the kernel is as it is to be.
func (t *Table) settle() {
	for _, name := range t.touched {
		c := t.chains[name]
		if t.count(&t.counters().Rules, len(c.rules)-c.had); c.gone {
			delete(t.chains, name)
			continue
		}
		c.touched, c.present, c.had = false, true, len(c.rules)
	}
	t.touched = nil
	for _, s := range t.sets {
		t.note(s, s.elements.Missing(), true)
		t.note(s, s.elements.Surplus(), false)
		s.fresh, s.outgrown = false, false
		s.elements.Settle()
	}
	t.sets = slices.DeleteFunc(t.sets, func(s *set) bool {
		if s.gone {
			delete(t.named, s.Name)
		}
		return s.gone
	})
	t.known, t.damaged, t.gone = true, false, false
}

// note notes whether the kernel has elements.
func (t *Table) note(s *set, list []packed, present bool) {
	for _, e := range list {
		s.elements.SetPresent(e, present)
	}
	if !present {
		t.count(&t.counters().Elements, -len(list))
		return
	}
	t.count(&t.counters().Elements, len(list))
}

func (t *Table) count(c *atomic.Int64, n int) { c.Add(int64(n)) }

func (t *Table) counters() *Counters {
	if t.Counters == nil {
		t.Counters = new(Counters)
	}
	return t.Counters
}
