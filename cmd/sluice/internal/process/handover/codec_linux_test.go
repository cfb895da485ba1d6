package handover

import (
	"encoding/json"
	"math"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/internal/flows/report"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
	"github.com/sluice-lb/sluice/sctp"
	"github.com/sluice-lb/sluice/sctp/engine"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

var (
	sampleID = lb.ID{Namespace: "default", Name: "web", Port: "http", Protocol: lb.TCP, IPv6: true}
	addr4    = netip.MustParseAddrPort("192.0.2.1:8080")
	addr6    = netip.MustParseAddrPort("[2001:db8::1]:53")
)

// sample is one record, and the message that it crosses in.
type sample struct {
	kind kind
	v    any                          // points to it
	pass func(c *codec, into any) any // passes into, or a new record if that is nil, which it returns
}

func of[T any](k kind, v T, pass func(*codec, *T)) sample {
	return sample{k, &v, func(c *codec, into any) any {
		v, ok := into.(*T)
		if !ok {
			v = new(T)
		}
		c.record(func() { pass(c, v) })
		return v
	}}
}

// samples are one of each record, with every field set.
func samples() map[string]sample {
	many := balancer.Histogram{}.Buckets
	many[0], many[7], many[len(many)-1] = 1, 1<<40, 2
	conn, flow, assoc := (*codec).conn, (*codec).flow, (*codec).assoc
	return map[string]sample{
		"offered": of(offersMsg, tcp.Frozen{Offer: 7, Client: 5, Backend: 6, Service: sampleID, Addr: addr4}, (*codec).offer),
		"relaying": of(connsMsg, tcp.Frozen{Client: 5, Backend: 6, Service: sampleID, Addr: addr4, ToBackend: tcp.Way{EOF: true, Shut: true, Waiting: []byte("abc")},
			ToClient: tcp.Way{EOF: true, Shut: true, Waiting: make([]byte, 70000)}, Header: 3, Transparent: true,
			Kept: session.Kept{Born: 1 << 50, In: 1 << 40, Out: 7, Answered: 1 << 40, Active: 1 << 41, ClientEnd: 1 << 43, BackendEnd: -7, Chance: 7, Counted: true,
				Gone: 1 << 42, Drain: 1, Why: lb.ByRetry}}, conn),
		"offered before": of(connsMsg, tcp.Frozen{Offer: 300, ToClient: tcp.Way{Shut: true}}, conn),
		"dialling": of(connsMsg, tcp.Frozen{Client: 5, Backend: -1, Service: sampleID, Dial: &tcp.Dialling{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: addr6},
			Client: addr6.Addr(), Port: 65535, Tried: []netip.AddrPort{addr4, addr6}, Attempt: 2, Shortages: 5,
			Left: 123 * time.Millisecond, Queued: 1 << 40, Held: true}}, conn),
		"flow": of(flowsMsg, udp.Frozen{Listening: 3, Member: 1, FD: 5, Client: addr6, Scope: 9, Local: addr4.Addr(), Service: sampleID, Addr: addr4,
			Tried: []netip.AddrPort{addr6}, Attempts: 2, LastSize: 65527, Born: -5, In: 8, Out: 1 << 50,
			Idle: time.Second, Leaving: time.Millisecond,
			Trial: time.Minute, Header: []byte("PROXY"), PlainIn: true, PlainOut: true, Answered: true, Known: true,
			Silent: true, Heard: 700, Awaits: -800, Followed: 2, Why: lb.ByAffinity}, flow),
		"memory": of(memoryMsg, balancer.Stats{ID: sampleID, First: [2]uint64{1, 2}, Retry: [2]uint64{3, 1 << 63},
			Gone:     balancer.Counts{Picks: 5, Failures: 6, BytesIn: 14, BytesOut: 15},
			Refusals: balancer.Refusals{NoBackend: 7, NoLocalBackend: 8, NotAllowed: 9, Limited: 10},
			Ends:     &lb.Ends{lb.ClientData: 3, lb.ServerData: 1 << 40},
			Backends: []balancer.BackendStats{
				{Addr: addr4, Counts: balancer.Counts{Picks: 10, Failures: 11, BytesIn: 16, BytesOut: 17},
					Pace: balancer.Pace{Delay: 7, Measured: 1 << 20, Starts: true, Began: 900, Had: 1 << 40}},
				{Addr: addr4, Pace: balancer.Pace{Starts: true}},
				{Addr: addr6, Counts: balancer.Counts{Picks: 12, Failures: 13}, Health: balancer.BackendHealth{Failures: [2]uint32{1, 2}, Ejected: true,
					Times: 3, Returned: 500, At: 1000, Until: 3000, Trial: 2500, Kind: 1, Reason: "refused", Failing: true, Why: "status 500"}}}},
			(*codec).memory),
		"times": of(timesMsg, times{sampleID, &balancer.Times{balancer.ConnectTime: {Sum: 7}, balancer.Duration: {Sum: 1 << 50, Buckets: many}}},
			(*codec).times),
		"clients": of(clientsMsg, affinity{sampleID, []lb.Client{{Addr: addr4.Addr(), Backend: addr6, LastUsed: 1000}, {Addr: addr6.Addr(), Backend: addr4, LastUsed: -5}}},
			(*codec).affinity),
		"conversations": of(conversationsMsg, conversations{sampleID, []balancer.Conversation{
			{Key: 1 << 63, Backend: addr4, Answered: true, Stream: true, Time: 1000}, {Key: 1, Backend: addr6, Time: -5}}},
			(*codec).conversations),
		"rates": of(ratesMsg, rates{sampleID, []balancer.ClientRate{{Addr: addr4.Addr(), Rested: 1e9}, {Addr: addr6.Addr(), Rested: 2001}}},
			(*codec).rates),
		"why": of(whysMsg, report.Chosen{Protocol: lb.TCP, Client: addr6, Asked: addr4, Why: lb.ByRoom, At: time.Unix(7, 8)},
			(*codec).chosen),
		"packets": of(assocsMsg, sctp.Frozen{Service: sampleID, Addr: addr4, Kept: session.Kept{Born: 1, Active: 2, Why: lb.ByHold}, Left: time.Minute, Packets: &engine.Packets{
			Client:  engine.Side{Peer: addr6, Local: addr6, Scope: 3},
			Backend: engine.Side{Peer: addr4, Local: addr4}, Tags: engine.Tags{Client: 1 << 31, Backend: 2}, Asked: 3, Asking: 7,
			Offered: []engine.Tags{{Client: 3, Backend: 4}, {}}, Next: 5, Echoed: engine.Tags{Client: 3, Backend: 4}, Phase: 2, Counted: true, ClientShut: true}}, assoc),
		"packets dialling": of(assocsMsg, sctp.Frozen{Service: sampleID, Addr: addr4, Packets: &engine.Packets{Client: engine.Side{Peer: addr4, Local: addr4}},
			Dial: &engine.Dialling{Init: []byte("init"), Hops: 7, Dialling: tcp.Dialling{Frontend: lb.Frontend{Protocol: lb.SCTP, Addr: addr6},
				Client: addr4.Addr(), Tried: []netip.AddrPort{addr6}, Attempt: 2}}}, assoc),
		"sockets": of(assocsMsg, sctp.Frozen{Service: sampleID, Addr: addr4, Sockets: &engine.Sockets{
			Asked: lb.Frontend{Protocol: lb.SCTP, Addr: addr6}, Client: 5, Backend: 6,
			ToBackend: engine.Way{EOF: true, Shut: true, Partial: []byte("part")}, ToClient: engine.Way{Whole: []byte("whole"), Stream: 7, Flags: 1, PPID: 1 << 31}}}, assoc),
		"sockets dialling": of(assocsMsg, sctp.Frozen{Sockets: &engine.Sockets{Client: 5, Backend: -1}, Left: time.Second,
			Dial: &engine.Dialling{In: 10, Out: 65535, Dialling: tcp.Dialling{Frontend: lb.Frontend{Protocol: lb.SCTP, Addr: addr6},
				Client: addr4.Addr(), Attempt: 1, Shortages: 2, Left: time.Minute, Queued: 7, Held: true}}}, assoc),
		"setup": of(setupMsg, sampleSetup(), (*codec).json),
	}
}

// TestRecords: what is written is what is read, and what is cut off anywhere is refused.
func TestRecords(t *testing.T) {
	for name, s := range samples() {
		var w codec
		s.pass(&w, s.v)
		r := codec{b: w.b, fds: w.fds, reading: true}
		if got := s.pass(&r, nil); !reflect.DeepEqual(got, s.v) || r.err != nil || r.more() || len(r.fds) > 0 {
			t.Errorf("%s: read\n%+v\nof what was written as\n%+v\n%v, %d bytes and %d descriptors left", name, got, s.v, r.err, len(r.b), len(r.fds))
		}
		for n := 0; n < len(w.b); n += max(1, len(w.b)/1000) {
			if r := (codec{b: w.b[:n], fds: w.fds, reading: true}); s.pass(&r, nil) == nil || r.err == nil {
				t.Errorf("%s: %d of %d bytes are taken for the whole", name, n, len(w.b))
			}
		}
		if len(w.fds) > 0 {
			if r := (codec{b: w.b, fds: w.fds[1:], reading: true}); s.pass(&r, nil) == nil || r.err == nil {
				t.Errorf("%s: a descriptor is missing, and it is taken for the whole", name)
			}
		}
	}
}

// older is a record as one version has it, and newer as the next one does, with a record within each.
type older struct{ first, inner, last int }

type newer struct {
	older
	innerAdded string
	added      []netip.AddrPort
}

func (c *codec) older(v *older) {
	number(c, &v.first)
	c.record(func() { number(c, &v.inner) })
	number(c, &v.last)
}

func (c *codec) newer(v *newer) {
	number(c, &v.first)
	c.record(func() { number(c, &v.inner); c.string(&v.innerAdded) })
	number(c, &v.last)
	list(c, &v.added, c.addrPort)
}

// TestOtherVersions: of a record that has fields more, or less, everything else is read, and what is missing is zero.
func TestOtherVersions(t *testing.T) {
	was := newer{older{1, 2, 3}, "new", []netip.AddrPort{addr4}}
	var w codec
	w.record(func() { w.newer(&was) })
	w.record(func() { w.older(&was.older) })
	w.record(func() { w.older(&was.older) })
	r := codec{b: w.b, reading: true}
	var old older
	if r.record(func() { r.older(&old) }); r.err != nil || old != was.older {
		t.Errorf("with fields more: %+v, %v", old, r.err)
	}
	var next newer
	if r.record(func() { r.newer(&next) }); r.err != nil || !reflect.DeepEqual(next, newer{older: was.older}) {
		t.Errorf("with fields less: %+v, %v", next, r.err)
	}
	if r.record(func() { r.older(&old) }); r.err != nil || r.more() {
		t.Errorf("the record after: %v, %d bytes left", r.err, len(r.b))
	}
	for name, s := range samples() {
		if s.kind == setupMsg {
			continue // JSON
		}
		var w codec
		s.pass(&w, s.v)
		payload := codec{b: w.b, reading: true}
		payload.length(0)
		var longer codec
		longer.record(func() { longer.b = append(append(longer.b, payload.b...), 7, 3, 'n', 'e', 'w') })
		r := codec{b: append(longer.b, 1), fds: w.fds, reading: true}
		if got := s.pass(&r, nil); r.err != nil || !reflect.DeepEqual(got, s.v) || len(r.b) != 1 {
			t.Errorf("%s with one field more: %+v, %v, %d bytes left", name, got, r.err, len(r.b))
		}
	}
	flow := samples()["flow"].v.(*udp.Frozen)
	flow.Why = lb.Why(0) // its last field, of one byte then
	w = codec{}
	w.flow(flow)
	var shorter codec
	shorter.record(func() { shorter.b = append(shorter.b, w.b[:len(w.b)-1]...) })
	r = codec{b: shorter.b, fds: w.fds, reading: true}
	var got udp.Frozen
	if r.record(func() { r.flow(&got) }); r.err != nil || !reflect.DeepEqual(&got, flow) {
		t.Errorf("a flow with one field less: %+v, want %+v, %v", got, flow, r.err)
	}
}

// TestNumbers: a number that does not fit its type is refused.
func TestNumbers(t *testing.T) {
	big, negative := uint64(math.MaxUint64), -1
	var w codec
	number(&w, &big)
	number(&w, &negative)
	r := codec{b: w.b, reading: true}
	var port uint16
	if number(&r, &port); r.err == nil || port != 0 {
		t.Errorf("%d is read as the 16 bits %d", big, port)
	}
	var short int
	r = codec{b: w.b, reading: true}
	number(&r, &big)
	if number(&r, &short); r.err != nil || short != -1 {
		t.Errorf("-1 is read as %d, %v", short, r.err)
	}
	r = codec{b: []byte{1}, reading: true}
	if n := r.length(0); n != 0 || r.err == nil {
		t.Errorf("a length of -1 is read as %d", n)
	}
}

// json passes what crosses as JSON.
func (c *codec) json(v *setup) {
	var b []byte
	if !c.reading {
		b, c.err = json.Marshal(v)
	}
	if c.bytes(&b); c.reading && c.err == nil {
		c.err = json.Unmarshal(b, v)
	}
}

// sampleSetup has every field set.
func sampleSetup() setup {
	return setup{PID: 7, Files: 8, Seed: 1 << 63, TCP: []tcp.Listening{{Addr: addr4, Steered: true, FDs: []int{3, 4}}},
		UDP: []udp.Listening{{Frontend: lb.Frontend{Protocol: lb.UDP, Addr: addr6}, FDs: []int{5}}},
		SCTP: sctp.Holding{Engine: sctp.Socket, Why: "asked for", Shares: 2, Raw: []engine.Raw{{Share: 1, IPv6: true}}, Listening: []engine.Listening{
			{Frontend: lb.Frontend{Protocol: lb.SCTP, Addr: addr6}, Addr: addr4, Sockets: []engine.ListeningSocket{{Addr: addr4.Addr()}}}}},
		HTTP: []httpSocket{{Address{"tcp", "0.0.0.0:10256", 1}, 6}}, Agent: agent.State{TCPPort: 31000,
			Drains:  []lb.Drain{{Addr: addr4, Service: sampleID.Service(), Deadline: 1 << 40, By: "root"}, {Node: "n1"}},
			History: agent.History{Applied: 3, Failures: 4, Repairs: 5},
			Sockets: []agent.Socket{{Frontend: lb.Frontend{Protocol: lb.UDP, Addr: addr6}, Addr: addr6, Proxy: true},
				{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: addr4}, Addr: addr4}},
			Node: lb.Node{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")}},
			Services: []*lb.Service{{ID: sampleID, AffinityTimeout: 5, Created: 1 << 40, CheckPort: 30001, Policies: &lb.Policies{DataPath: "userspace",
				Scheduler: "rr"},
				Addresses: []lb.Address{{Addr: addr6, Kind: lb.LoadBalancerIP, Local: true, Sources: []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")}}},
				Backends:  []lb.Backend{{Addr: addr6, Weight: 7, Ready: true, Serving: true, Terminating: true, Local: true, NodeHint: lb.HintHere, ZoneHint: lb.HintElsewhere}}}}}}
}

// TestSetup: all of it crosses, and each descriptor has its place in the order.
func TestSetup(t *testing.T) {
	want := sampleSetup()
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got setup
	if err := json.Unmarshal(b, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read\n%+v, %v\nof what was written as\n%+v", got, err, want)
	}
	var fds []int
	got.eachFD(func(fd *int) { fds = append(fds, *fd) })
	if want := []int{3, 4, 5, 0, 0, 0, 6}; !reflect.DeepEqual(fds, want) {
		t.Errorf("the descriptors are %v, want %v", fds, want)
	}
}

// FuzzMessages: whatever comes in whatever order, there is no crash, and no memory that
// the sender has not paid for.
func FuzzMessages(f *testing.F) {
	for _, s := range samples() {
		var w codec
		s.pass(&w, s.v)
		f.Add(byte(s.kind), w.b, byte(s.kind), []byte("waiting"))
		f.Add(byte(offersMsg), w.b, byte(connsMsg), w.b)
	}
	f.Add(byte(countersMsg), []byte(`{"Conns":1}`), byte(frozenMsg), []byte(`1`))
	f.Fuzz(func(t *testing.T, k1 byte, b1 []byte, k2 byte, b2 []byte) {
		taker := &taker{setup: sampleSetup(), offers: make(map[uint32]tcp.Frozen)}
		for _, m := range []message{{kind: kind(k1), payload: b1}, {kind: kind(k2), payload: b2}} {
			// As many descriptors as there may be records; none of them is open.
			for range min(len(m.payload)/8, maxFDs) {
				m.fds = append(m.fds, math.MaxInt32)
			}
			if taker.message(m, new(balancer.Balancer)) != nil {
				return
			}
		}
		if n := len(taker.conns) + len(taker.flows) + len(taker.offers) + len(taker.assocs); n > len(b1)+len(b2) {
			t.Errorf("%d connections and flows of %d bytes", n, len(b1)+len(b2))
		}
	})
}
