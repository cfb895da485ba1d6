package handover

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

var (
	sampleID = lb.ID{Namespace: "default", Name: "web", Port: "http", Protocol: lb.TCP, IPv6: true}
	addr4    = netip.MustParseAddrPort("192.0.2.1:8080")
	addr6    = netip.MustParseAddrPort("[2001:db8::1]:53")
)

// samples are one of each record, with every field set.
func samples() map[string]any {
	return map[string]any{
		"relaying": conn{Frozen: tcp.Frozen{Offer: 7, Client: -1, Service: sampleID, Addr: addr4, ToBackend: tcp.Way{EOF: true, Shut: true}, ToClient: tcp.Way{EOF: true, Shut: true}},
			named: true, toBackend: 3, toClient: 70000},
		"offered before": conn{Frozen: tcp.Frozen{Offer: 300, Client: -1, ToClient: tcp.Way{Shut: true}}},
		"dialling": conn{Frozen: tcp.Frozen{Client: -1, Backend: -1, Service: sampleID, Dial: &tcp.Dialling{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: addr6},
			Client: addr6.Addr(), Tried: []netip.AddrPort{addr4, addr6}, Attempt: 2, Shortages: 5, Left: 123 * time.Millisecond}}, named: true},
		"flow": udp.Frozen{Listening: 3, Member: 1, FD: -1, Client: addr6, Scope: 9, Local: addr4.Addr(), Service: sampleID, Addr: addr4,
			Tried: []netip.AddrPort{addr6}, Attempts: 2, LastSize: 65527, Idle: time.Second, Leaving: time.Millisecond,
			Trial: time.Minute, PlainIn: true, PlainOut: true},
		"memory": lb.Memory{ID: sampleID, First: [2]uint64{1, 2}, Retry: [2]uint64{3, 1 << 63}, Picks: 5, Failures: 6, BytesIn: 14, BytesOut: 15, NoBackend: 7, NoLocalBackend: 8, NotAllowed: 9,
			Backends: []lb.BackendMemory{{Addr: addr4, Picks: 10, Failures: 11, BytesIn: 16, BytesOut: 17}, {Addr: addr6, Picks: 12, Failures: 13}}},
		"clients": []lb.Client{{Addr: addr4.Addr(), Backend: addr6, LastUsed: 1000}, {Addr: addr6.Addr(), Backend: addr4, LastUsed: -5}},
		"sctp setup": setup{SCTP: sctp.Holding{Engine: sctp.Socket, Why: "asked for", Raw: []sctp.Raw{{Share: 1, IPv6: true}}, Listening: []sctp.Listening{
			{Frontend: lb.Frontend{Protocol: lb.SCTP, Addr: addr6}, Addr: addr4, Sockets: []sctp.ListeningSocket{{Addr: addr4.Addr()}}}}}},
		"packets": sctp.Frozen{Service: sampleID, Addr: addr4, Idle: time.Second, Left: time.Minute, Packets: &sctp.Packets{
			Client:  sctp.Side{Peer: addr6, Local: addr6, Scope: 3},
			Backend: sctp.Side{Peer: addr4, Local: addr4}, Tags: sctp.Tags{Client: 1 << 31, Backend: 2}, Asked: 3, Waiting: time.Millisecond,
			Offered: []sctp.Tags{{Client: 3, Backend: 4}, {}}, Next: 5, Echoed: sctp.Tags{Client: 3, Backend: 4}, Phase: 2, Counted: true}},
		"packets dialling": sctp.Frozen{Service: sampleID, Addr: addr4, Packets: &sctp.Packets{Client: sctp.Side{Peer: addr4, Local: addr4}},
			Dial: &sctp.Dialling{Init: []byte("init"), Dialling: tcp.Dialling{Frontend: lb.Frontend{Protocol: lb.SCTP, Addr: addr6},
				Client: addr4.Addr(), Tried: []netip.AddrPort{addr6}, Attempt: 2}}},
		"sockets": sctp.Frozen{Service: sampleID, Addr: addr4, Idle: time.Second, Sockets: &sctp.Sockets{
			ToBackend: sctp.Way{EOF: true, Shut: true, Partial: []byte("part")}, ToClient: sctp.Way{Whole: []byte("whole"), Stream: 7, Flags: 1, PPID: 1 << 31}}},
		"sockets dialling": sctp.Frozen{Sockets: &sctp.Sockets{Backend: -1}, Left: time.Second,
			Dial: &sctp.Dialling{In: 10, Out: 65535, Dialling: tcp.Dialling{Frontend: lb.Frontend{Protocol: lb.SCTP, Addr: addr6},
				Client: addr4.Addr(), Attempt: 1, Shortages: 2}}},
		"setup": setup{Seed: 1 << 63, TCP: []tcpSockets{{tcp.Listening{Addr: addr4, Steered: true}, 2}}, UDP: []udpSockets{{udp.Listening{Frontend: lb.Frontend{Protocol: lb.UDP, Addr: addr6}}, 1}},
			HTTP: []Address{{"tcp", "0.0.0.0:10256"}}, Agent: agent.State{TCPPort: 31000, Applied: 3, Proxy: []agent.Proxy{{Frontend: lb.Frontend{Protocol: lb.UDP, Addr: addr6}, Addr: addr6}},
				Held: []lb.Frontend{{Protocol: lb.TCP, Addr: addr4}},
				Node: lb.Node{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")}},
				Services: []*lb.Service{{ID: sampleID, AffinityTimeout: 5, DataPath: "userspace", Scheduler: "rr",
					Addresses: []lb.Address{{Addr: addr6, Kind: lb.LoadBalancerIP, Local: true, Sources: []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")}}},
					Backends:  []lb.Backend{{Addr: addr6, Ready: true, Serving: true, Terminating: true, Local: true, NodeHint: lb.HintHere, ZoneHint: lb.HintElsewhere}}}}}},
	}
}

func encode(t *testing.T, v any) []byte {
	var w writer
	switch v := v.(type) {
	case conn:
		f := v.Frozen
		f.ToBackend.Waiting, f.ToClient.Waiting = make([]byte, v.toBackend), make([]byte, v.toClient)
		appendConn(&w, &f, v.named)
	case udp.Frozen:
		appendFlow(&w, &v)
	case lb.Memory:
		appendMemory(&w, &v)
	case []lb.Client:
		appendClients(&w, sampleID, v, 2000)
	default:
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	return w.b
}

// decode returns what b says, as something like v.
func decode(t *testing.T, b []byte, v any) any {
	r := reader{b: b}
	var out any
	switch v.(type) {
	case conn:
		out = readConn(&r)
	case udp.Frozen:
		out = readFlow(&r)
	case sctp.Frozen:
		var f sctp.Frozen
		if err := json.Unmarshal(b, &f); err != nil {
			t.Error(err)
		}
		return f
	case lb.Memory:
		out = readMemory(&r)
	case []lb.Client:
		id, clients := readClients(&r, 2000)
		if id != sampleID {
			t.Errorf("clients of %v", id)
		}
		out = clients
	default:
		var s setup
		if err := json.Unmarshal(b, &s); err != nil {
			t.Error(err)
		}
		return s
	}
	if r.err != nil || r.more() {
		t.Errorf("%v, %d bytes left", r.err, len(r.b))
	}
	return out
}

// TestRecords: what is written is what is read, and what is cut off anywhere is refused.
func TestRecords(t *testing.T) {
	for name, v := range samples() {
		b := encode(t, v)
		if got := decode(t, b, v); !reflect.DeepEqual(got, v) {
			t.Errorf("%s: read\n%+v\nof what was written as\n%+v", name, got, v)
		}
		switch v.(type) {
		case setup, sctp.Frozen: // they are JSON
			continue
		}
		for n := range b {
			r := reader{b: b[:n]}
			switch v.(type) {
			case conn:
				readConn(&r)
			case udp.Frozen:
				readFlow(&r)
			case lb.Memory:
				readMemory(&r)
			default:
				readClients(&r, 0)
			}
			if r.err == nil {
				t.Errorf("%s: %d of %d bytes are taken for the whole", name, n, len(b))
			}
		}
	}
}

// FuzzMessages: whatever comes in whatever order, there is no crash, and no memory that
// the sender has not paid for.
func FuzzMessages(f *testing.F) {
	var t testing.T
	for name, v := range samples() {
		k, b := partMsg, encode(&t, v)
		switch v.(type) {
		case conn:
			k = connsMsg
		case udp.Frozen:
			k = flowsMsg
		default:
			p := map[string]part{"memory": memoryPart, "clients": clientsPart, "setup": setupPart, "sctp setup": setupPart}[name]
			if p == 0 {
				p = assocsPart
			}
			b = append([]byte{byte(p), 1}, b...)
		}
		f.Add(byte(k), b, byte(bytesMsg), []byte("waiting"))
		f.Add(byte(offersMsg), b, byte(connsMsg), b)
		f.Add(byte(assocSocketsMsg), []byte("descriptors there are"), byte(k), b)
	}
	f.Add(byte(commitMsg), []byte(`{"Conns":1}`), byte(frozenMsg), []byte(`{"Since":1}`))
	f.Fuzz(func(t *testing.T, k1 byte, b1 []byte, k2 byte, b2 []byte) {
		taker := &Taker{token: token{-1}, parts: make(map[part][]byte), offers: make(map[uint32]conn)}
		e := &State{LB: new(lb.Balancer)}
		for _, m := range []message{{kind: kind(k1), payload: b1}, {kind: kind(k2), payload: b2}} {
			// As many descriptors as there may be records; none of them is open.
			for range min(len(m.payload)/8, maxFDs) {
				m.fds = append(m.fds, -1)
			}
			if _, err := taker.message(m, e); err != nil {
				return
			}
		}
		if n := len(taker.conns) + len(taker.flows) + len(taker.offers) + len(taker.assocs); n > len(b1)+len(b2) {
			t.Errorf("%d connections and flows of %d bytes", n, len(b1)+len(b2))
		}
	})
}
