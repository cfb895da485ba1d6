package nftables

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nft"
	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/lb"
)

// What a table has with Ask besides.
const (
	setAsked      = "asked" // addresses: a process is asked about new flows
	setAskedPorts = "asked-node-ports"
	setNumbered   = "numbered" // bits of a mark: the endpoint
	chainAsk      = "ask"      // new flows to Services
	chainChosen   = "chosen"   // flows that a process has chosen an endpoint for

	setCounted      = "counted" // addresses: all turns of connections are to be heard of
	setCountedPorts = "counted-node-ports"
)

// fewEvents are the events of conntrack that all connections have (enum ip_conntrack_events of
// linux/netfilter/nf_conntrack_common.h), without IPCT_ASSURED and IPCT_PROTOINFO, which come with each change of
// state.
const fewEvents = 0xffff &^ (1<<4 | 1<<5)

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
	for chain, hook := range askHooks {
		t.SetChain(chain, hook, []nft.Rule{
			s.rule().Unconfirmed().In(setAsked, asked...).GotoChain(chainAsk).Rule(""),
			s.rule().Unconfirmed().ToLocal().Loopback(false).In(setAskedPorts, port...).GotoChain(chainAsk).Rule(""),
		})
	}
	if s.ask.Events {
		t.AddSet(nft.Set{Name: setCounted, Key: frontend})
		t.AddSet(nft.Set{Name: setCountedPorts, Key: frontend[1:]})
	}
	t.SetChain(chainChosen, nil, []nft.Rule{
		s.rule().Map(setNumbered, nft.MarkWithin(s.ask.Mask)).SetMark(s.ask.Mask, false).DNAT().Rule(""),
		s.rule().SetMark(s.ask.Mask, false).Rule("no process has answered"),
	})
}

// queues adds the rules for what asks: a packet goes to the queue of its flow, and conntrack makes fewer events of it
// where it does not matter what is in flight. Services may be counted: what is empty is not looked into.
func (s *shape) queues(t *nft.Table, counted bool) {
	ask := []nft.Rule{s.rule().SetMark(s.ask.Mask, false).Rule("bits of other programs lead to no endpoint")}
	if s.ask.Events {
		few := s.rule().Protocol(unix.IPPROTO_TCP)
		if counted {
			few.NotIn(setCounted, asked...).NotIn(setCountedPorts, port...)
		}
		ask = append(ask, few.Events(fewEvents).Rule("it does not matter what is in flight"))
	}
	q := nft.Queues{First: s.ask.First, Count: s.ask.Count, Target: s.ask.Target}
	t.SetChain(chainAsk, nil, append(ask, s.rule().Queue(q).Rule("")))
}

// add adds what is asked at an address of a Service, and what is to be known of its connections of TCP.
func (a *Ask) add(u *unit, service *lb.Service, addr netip.AddrPort) {
	addrs, counted := setAsked, setCounted
	if addr.Addr().IsUnspecified() {
		addrs, counted = setAskedPorts, setCountedPorts
	}
	at := nft.Element{Key: key(service.Protocol, addr)}
	u.add(addrs, at)
	if a.Events && service.Protocol == lb.TCP && service.InForce(&a.Defaults).CountsInFlight() {
		u.add(counted, at)
		u.counted = 1
	}
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
//
// There are fewer numbers than there may be endpoints. So of an engine's Services one may have a share of them only
// (package shares); those without get one with a later change, when there are some.
type endpoints struct {
	share shares.Percent
	given map[netip.AddrPort]*given
	has   map[lb.Name]int64                       // numbers, by the Service that has brought their endpoints
	lacks map[lb.Name]map[netip.AddrPort]struct{} // endpoints without a number, so
	come  []netip.AddrPort                        // since settle
	gone  []uint32                                // since settle
	free  []uint32                                // the longest ago first
	last  uint32                                  // that was never given before
	kept  map[netip.AddrPort]uint32               // by an earlier process, and not taken yet
	parts [256]atomic.Pointer[map[netip.AddrPort]uint32]
}

type given struct {
	number uint32
	refs   int
	of     lb.Name // the Service that has brought it
}

// take returns the number of an endpoint of a Service, one reference more; 0 if there are too many.
func (e *endpoints) take(addr netip.AddrPort, of lb.Name, mask uint32) uint32 {
	if g := e.given[addr]; g != nil {
		g.refs++
		return g.number
	}
	g := &given{refs: 1, of: of}
	if kept, had := e.kept[addr]; had {
		g.number = kept
		delete(e.kept, addr)
	} else {
		g.number = e.next(of, mask)
	}
	if e.given == nil {
		e.given, e.has = make(map[netip.AddrPort]*given), make(map[lb.Name]int64)
		e.lacks = make(map[lb.Name]map[netip.AddrPort]struct{})
	}
	e.given[addr] = g
	if g.number != 0 {
		e.has[of]++
		e.come = append(e.come, addr)
		return g.number
	}
	if e.lacks[of] == nil {
		e.lacks[of] = make(map[netip.AddrPort]struct{})
	}
	e.lacks[of][addr] = struct{}{}
	return 0
}

// next returns a number that no endpoint has; 0: there is none for a Service.
func (e *endpoints) next(of lb.Name, mask uint32) (number uint32) {
	one := mask & -mask
	if one == 0 {
		return 0
	}
	unused := int64((mask-e.last)/one) + int64(len(e.free))
	switch {
	case unused == 0 || !e.share.Allows(e.has[of], 1, unused):
	case e.last != mask:
		e.last += one
		number = e.last
	default:
		number, e.free = e.free[0], e.free[1:]
	}
	return number
}

// fill gives endpoints numbers that had none, as far as there are some, and passes them with their references.
func (e *endpoints) fill(mask uint32, do func(addr netip.AddrPort, number uint32, refs int)) {
	for of, some := range e.lacks {
		for addr := range some {
			number := e.next(of, mask)
			if number == 0 {
				break
			}
			g := e.given[addr]
			g.number = number
			e.has[of]++
			e.numbered(of, addr)
			e.come = append(e.come, addr)
			do(addr, number, g.refs)
		}
	}
}

// numbered notes that an endpoint lacks no number any more.
func (e *endpoints) numbered(of lb.Name, addr netip.AddrPort) {
	if delete(e.lacks[of], addr); len(e.lacks[of]) == 0 {
		delete(e.lacks, of)
	}
}

// drop returns the number of an endpoint, which has one reference less.
func (e *endpoints) drop(addr netip.AddrPort) uint32 {
	g := e.given[addr]
	if g.refs--; g.refs > 0 {
		return g.number
	}
	delete(e.given, addr)
	e.publish(addr, 0)
	if g.number == 0 {
		e.numbered(g.of, addr)
		return 0
	}
	e.gone = append(e.gone, g.number)
	if e.has[g.of]--; e.has[g.of] == 0 {
		delete(e.has, g.of)
	}
	return g.number
}

// unnumbered returns how many endpoints have no number, by the Service that has brought them.
func (e *endpoints) unnumbered() map[lb.Name]int {
	if len(e.lacks) == 0 {
		return nil
	}
	all := make(map[lb.Name]int, len(e.lacks))
	for of, some := range e.lacks {
		all[of] = len(some)
	}
	return all
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
		addr, number, ok := numbered(x, ipv6)
		if ok && number&^mask == 0 && number != 0 {
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
	e.given, e.has, e.lacks, e.come, e.gone, e.free, e.last, e.kept = nil, nil, nil, nil, nil, nil, 0, nil
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

func (e *Engine) without() map[lb.Name]int { return e.endpoints.unnumbered() }
