package nftables

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nft"
)

// What a table has with Ask besides.
const (
	setAsked      = "asked" // addresses: a process is asked about new flows
	setAskedPorts = "asked-node-ports"
	setNumbered   = "numbered" // bits of a mark: the endpoint
	chainChosen   = "chosen"   // flows that a process has chosen an endpoint for
)

// askHooks come after conntrack, and before nat: a packet leaves a queue for the next base chain.
var askHooks = map[string]*nft.Hook{
	"ask-prerouting": {Type: "filter", Number: unix.NF_INET_PRE_ROUTING, Priority: dstnat - 10, New: true},
	"ask-output":     {Type: "filter", Number: unix.NF_INET_LOCAL_OUT, Priority: dstnat - 10, New: true},
}

// asks adds the rules that ask a process, and the one that does what it says.
func (s *shape) asks(t *nft.Table) {
	t.AddSet(nft.Set{Name: setAsked, Key: frontend})
	t.AddSet(nft.Set{Name: setAskedPorts, Key: frontend[1:]})
	t.AddSet(nft.Set{Name: setNumbered, Key: turn[:1], Data: []nft.Field{nft.Address, nft.Port}})
	queues := nft.Queues{First: s.ask.First, Count: s.ask.Count, Target: s.ask.Target}
	for chain, hook := range askHooks {
		t.SetChain(chain, hook, []nft.Rule{
			s.rule().Unconfirmed().In(setAsked, asked...).Queue(queues).Rule(""),
			s.rule().Unconfirmed().ToLocal().Loopback(false).In(setAskedPorts, port...).Queue(queues).Rule(""),
		})
	}
	t.SetChain(chainChosen, nil, []nft.Rule{
		s.rule().Is(nft.MarkWithin(s.ask.Mask), true, nft.Key(s.ask.Mask)).GotoChain(chainReject).Rule("refused"),
		s.rule().Map(setNumbered, nft.MarkWithin(s.ask.Mask)).SetMark(s.ask.Mask, false).DNAT().Rule(""),
	})
}

// number adds or takes away n references to what a number stands for.
func (c *content) number(addr netip.AddrPort, number uint32, n int32) {
	if number != 0 {
		c.Add(setNumbered, nft.Element{Key: nft.Key(number), Data: nft.Key(addr.Addr(), addr.Port())}, n)
	}
}

// endpoints gives endpoints their numbers, which are bits of a mark. It is used by the engine's goroutine, but for of.
//
// A number is known from when the kernel has it until before it is taken away, and given to another endpoint as late
// as can be, for a packet may have it already.
type endpoints struct {
	given map[netip.AddrPort]*given
	come  []netip.AddrPort          // since settle
	gone  []uint32                  // since settle
	free  []uint32                  // the longest ago first
	last  uint32                    // that was never given before
	kept  map[netip.AddrPort]uint32 // by an earlier process, and not taken yet
	parts [256]atomic.Pointer[map[netip.AddrPort]uint32]
}

type given struct {
	number uint32
	refs   int
}

// take returns the number of an endpoint, one reference more; 0 if there are too many.
func (e *endpoints) take(addr netip.AddrPort, mask uint32) uint32 {
	if g := e.given[addr]; g != nil {
		g.refs++
		return g.number
	}
	g := &given{refs: 1}
	kept, had := e.kept[addr]
	switch one := mask & -mask; {
	case had:
		g.number = kept
		delete(e.kept, addr)
	case e.last != mask-one && bits.OnesCount32(mask) > 0:
		e.last += one
		g.number = e.last
	case len(e.free) > 0:
		g.number, e.free = e.free[0], e.free[1:]
	}
	if e.given == nil {
		e.given = make(map[netip.AddrPort]*given)
	}
	e.given[addr] = g
	e.come = append(e.come, addr)
	return g.number
}

// drop returns the number of an endpoint, which has one reference less.
func (e *endpoints) drop(addr netip.AddrPort) uint32 {
	g := e.given[addr]
	if g.refs--; g.refs == 0 {
		delete(e.given, addr)
		e.publish(addr, 0)
		if g.number != 0 {
			e.gone = append(e.gone, g.number)
		}
	}
	return g.number
}

// settle is called when the kernel has what there is.
func (e *endpoints) settle() {
	for _, addr := range e.come {
		if g := e.given[addr]; g != nil {
			e.publish(addr, g.number)
		}
	}
	e.free = append(e.free, e.gone...)
	for _, number := range e.kept {
		e.free = append(e.free, number)
	}
	e.come, e.gone, e.kept = nil, nil, nil
}

// keep has endpoints keep the numbers that an earlier process has given them: it may be asked until this one is. Other
// endpoints get those last, since it may still say them.
func (e *endpoints) keep(list []nft.Element, mask uint32, ipv6 bool) {
	e.kept = make(map[netip.AddrPort]uint32, len(list))
	used := make(map[uint32]bool, len(list))
	for _, x := range list {
		if addr, number, ok := numbered(x, ipv6); ok && number&^mask == 0 && number != 0 {
			e.kept[addr], used[number] = number, true
			e.last = max(e.last, number)
		}
	}
	for number := mask & -mask; number != 0 && number < e.last; number += mask & -mask {
		if !used[number] {
			e.free = append(e.free, number)
		}
	}
}

// numbered reads an element that content.number has made.
func numbered(x nft.Element, ipv6 bool) (addr netip.AddrPort, number uint32, ok bool) {
	size := len(nft.Key(netfilter.Unspecified(ipv6)))
	if len(x.Key) != 4 || len(x.Data) < size+2 {
		return addr, 0, false
	}
	ip, ok := netip.AddrFromSlice([]byte(x.Data[:size]))
	port := binary.BigEndian.Uint16([]byte(x.Data[size:]))
	return netip.AddrPortFrom(ip, port), binary.NativeEndian.Uint32([]byte(x.Key)), ok
}

// clear forgets all endpoints: the table has gone.
func (e *endpoints) clear() {
	for i := range e.parts {
		e.parts[i].Store(nil)
	}
	e.given, e.come, e.gone, e.free, e.last, e.kept = nil, nil, nil, nil, 0, nil
}

// part is where an endpoint is looked for: each is copied when one of its endpoints changes.
func (e *endpoints) part(addr netip.AddrPort) *atomic.Pointer[map[netip.AddrPort]uint32] {
	ip := addr.Addr().As16()
	return &e.parts[(ip[15]^ip[14]*31)^uint8(addr.Port())]
}

// publish makes a number known, or unknown if it is 0.
func (e *endpoints) publish(addr netip.AddrPort, number uint32) {
	p := e.part(addr)
	next := make(map[netip.AddrPort]uint32)
	if old := p.Load(); old != nil {
		if _, known := (*old)[addr]; !known && number == 0 {
			return
		}
		for a, n := range *old {
			next[a] = n
		}
	}
	if next[addr] = number; number == 0 {
		delete(next, addr)
	}
	p.Store(&next)
}

func (e *endpoints) of(addr netip.AddrPort) uint32 {
	if known := e.part(addr).Load(); known != nil {
		return (*known)[addr]
	}
	return 0
}

// table is the name of the engine's.
func (e *Engine) table() string {
	if e.Ask.Count > 0 {
		return queued
	}
	return table
}

// keepNumbers reads which numbers the table of an earlier process has.
func (e *Engine) keepNumbers() error {
	if e.Ask.Count == 0 {
		return nil
	}
	list, _, err := nft.Elements(e.IPv6, e.table(), setNumbered)
	if err == nil {
		e.endpoints.clear()
		e.endpoints.keep(list, e.Ask.Mask, e.IPv6)
	}
	return err
}

func (e *Engine) number(addr netip.AddrPort) uint32 { return e.endpoints.of(addr) }
