package track

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// TestScripts runs testdata/*.txt (testbed.RunScript): what conntrack says, and the flows after that. A flow is named
// by the port of its client, which is another for each thousand, and an endpoint is a, b, c ... Each command prints
// what it has to say, the flows and what is in flight. After each step what is always true of a flow is checked,
// and that its state may follow the one before. The commands:
//
//	service PROTOCOL ENDPOINT... [POLICY...]
//	                        begin anew with this Service; policies: lc, answers, attempts=N, eject=N
//	endpoints ENDPOINT...   the Service has these
//	packet PORT             a first packet asks for an endpoint
//	stray PORT              where a packet goes that conntrack does not know
//	entry ID PORT ENDPOINT [STATE] [replied] [plain] [counted=IN,OUT]
//	                        conntrack has an entry, without an event; plain: its destination is not translated
//	update (as entry)       the same, with an event
//	destroy (as entry)      the entry is not there any more, with an event
//	forget ID               the same without an event
//	lost                    events are lost
//	read                    read the table; what follows in lines happens after the kernel has listed it
//	pass DURATION           time passes, in which flows are probed every 50 ms
func TestScripts(t *testing.T) {
	testbed.Scripts(t, func(t *testing.T, script string) string {
		w := &world{t: t}
		return testbed.RunScript(t, script, func(line int, command []string) string {
			w.line = line
			return w.run(command)
		})
	})
}

var asks = netip.MustParseAddrPort("10.96.0.1:80")

// world is a Tracker without a kernel.
type world struct {
	*Tracker
	t       *testing.T
	line    int
	now     int64
	service lb.Service
	table   map[uint32]flows.Entry
	was     map[flowKey]state // at the last step
	said    []string
	during  []string // happens in the next reading
}

// newWorld follows flows of a Service.
func newWorld(t *testing.T, protocol lb.Protocol, policies lb.Policies, endpoints ...string) *world {
	w := &world{t: t, now: int64(time.Hour), table: make(map[uint32]flows.Entry)}
	w.Tracker = &Tracker{Balancer: new(lb.Balancer), Now: func() int64 { return w.now },
		Shares: shares.Shares{Service: 80, Client: 90},
		Number: func(at netip.AddrPort) uint32 { return uint32(at.Addr().As4()[3]) }}
	w.wake, w.wanted, w.lost = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	w.reader, w.finder = w, w
	w.service = lb.Service{ID: lb.ID{Name: "web", Protocol: protocol}, Policies: &policies,
		Addresses: []lb.Address{{Addr: asks}}}
	w.serve(endpoints)
	return w
}

func (w *world) serve(endpoints []string) {
	s := w.service
	s.Backends = nil
	for _, name := range endpoints {
		s.Backends = append(s.Backends, lb.Backend{Addr: endpoint(name), Ready: true, Serving: true})
	}
	w.service = s
	table, err := lb.NewTable([]*lb.Service{&s}, lb.Node{})
	testbed.Check(w.t, err)
	w.Balancer.Update(table)
	w.Changed(&lb.Delta{Added: []*lb.Service{&s}}, false)
}

func endpoint(name string) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, name[0] - 'a' + 1}), 8080)
}

func nameOfEndpoint(at netip.AddrPort) string { return string('a' + rune(at.Addr().As4()[3]) - 1) }

func (w *world) run(command []string) string {
	words := strings.Fields(command[0])
	w.said = nil
	switch words[0] {
	case "service":
		w.begin(words[1:])
	case "read":
		w.during = command[1:]
		w.readTable()
		w.step(false)
	default:
		w.do(words)
	}
	return strings.Join(append(w.said, w.flows()...), "\n")
}

func (w *world) begin(words []string) {
	policies, endpoints := lb.Policies{}, []string(nil)
	outlier := lb.Outlier{}
	for _, word := range words[1:] {
		switch name, value, _ := strings.Cut(word, "="); name {
		case "lc":
			policies.Scheduler = "lc"
		case "answers":
			policies.UDPResponses = 1
		case "attempts":
			policies.ConnectAttempts = int32(w.number(value))
		case "eject":
			outlier = lb.DefaultOutlier
			outlier.ConsecutiveFailures = int(w.number(value))
		default:
			endpoints = append(endpoints, word)
		}
	}
	of := map[string]lb.Protocol{"TCP": lb.TCP, "UDP": lb.UDP, "SCTP": lb.SCTP}[words[0]]
	next := newWorld(w.t, of, policies, endpoints...)
	next.line, next.Balancer.Outlier = w.line, outlier
	*w = *next
	w.reader, w.finder = w, w
	w.Now = func() int64 { return w.now }
}

func (w *world) number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		w.t.Fatalf("line %d: %v", w.line, err)
	}
	return n
}

// do runs a command that may also happen in a reading.
func (w *world) do(words []string) {
	defer func() { w.step(words[0] == "packet") }()
	switch args := words[1:]; words[0] {
	case "endpoints":
		w.serve(args)
	case "packet":
		number, err := w.Choose(w.flow(args[0]))
		if err != nil {
			w.said = append(w.said, err.Error())
		} else {
			w.said = append(w.said, "to "+string('a'+rune(number)-1))
		}
	case "stray":
		if at, ok := w.At(w.flow(args[0])); ok {
			w.said = append(w.said, "to "+nameOfEndpoint(at))
		} else {
			w.said = append(w.said, "not followed")
		}
	case "entry", "update", "destroy":
		e := w.entry(args)
		if w.table[e.ID] = e; words[0] == "update" {
			w.handle(&conntrack.Event{Kind: conntrack.Update, Entry: e})
		}
		if words[0] == "destroy" {
			delete(w.table, e.ID)
			w.handle(&conntrack.Event{Kind: conntrack.Destroy, Entry: e})
		}
	case "forget":
		delete(w.table, uint32(w.number(args[0])))
	case "lost":
		w.handle(&conntrack.Event{Kind: conntrack.Lost})
		w.said = append(w.said, fmt.Sprintf("to be read: %t", len(w.lost) == 1))
	case "pass":
		d, err := time.ParseDuration(args[0])
		testbed.Check(w.t, err)
		for end := w.now + int64(d); w.now < end; {
			w.now += int64(probeEvery)
			for i := range w.parts {
				w.probePart(&w.parts[i], probesAtOnce)
			}
			w.step(false)
		}
	default:
		w.t.Fatalf("line %d: unknown command %q", w.line, words[0])
	}
}

func (w *world) flow(port string) *lb.Flow {
	from := w.client(port)
	return &lb.Flow{Frontend: lb.Frontend{Protocol: w.service.Protocol, Addr: asks}, Client: from.Addr(),
		ClientPort: from.Port(), Now: w.now, Forwarded: true}
}

func (w *world) client(port string) netip.AddrPort {
	n := w.number(port)
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(n / 1000)}), uint16(n))
}

var stateNames = map[string]conntrack.State{
	"SYN_SENT": conntrack.TCPSynSent, "SYN_RECV": conntrack.TCPSynRecv, "ESTABLISHED": conntrack.TCPEstablished,
	"TIME_WAIT": conntrack.TCPTimeWait, "CLOSE": conntrack.TCPClose, "SCTP_CLOSED": conntrack.SCTPClosed,
	"SCTP_COOKIE_WAIT": conntrack.SCTPCookieWait, "SCTP_ESTABLISHED": conntrack.SCTPEstablished,
}

func (w *world) entry(args []string) (e flows.Entry) {
	e.Protocol, e.ID, e.Status = w.service.Protocol, uint32(w.number(args[0])), conntrack.DstTranslated
	e.Src, e.Dst, e.Replies = w.client(args[1]), asks, endpoint(args[2])
	for _, word := range args[3:] {
		switch name, value, _ := strings.Cut(word, "="); {
		case name == "replied":
			e.Status |= conntrack.SeenReply
		case name == "plain":
			e.Status &^= conntrack.DstTranslated
		case name == "counted":
			in, out, _ := strings.Cut(value, ",")
			e.In.Packets, e.Out.Packets = w.number(in), w.number(out)
		case stateNames[word] != 0:
			e.State = stateNames[word]
		default:
			w.t.Fatalf("line %d: no state is %q", w.line, word)
		}
	}
	return e
}

// flows returns what is followed, by port, and what is in flight.
func (w *world) flows() (lines []string) {
	all := make(map[uint16]flow)
	for i := range w.parts {
		for k, one := range w.parts[i].flows {
			all[k.clientPort] = one
		}
	}
	for _, port := range slices.Sorted(maps.Keys(all)) {
		one := all[port]
		lines = append(lines, fmt.Sprintf("%d %s %s", port, one.state, nameOfEndpoint(one.backend())))
	}
	if int(w.Stats().Known) != len(all) {
		w.t.Errorf("line %d: %d flows are said to be known, of %d", w.line, w.Stats().Known, len(all))
	}
	view, _ := w.Balancer.View(w.service.ID)
	line := ""
	for _, b := range view.Stats.Backends {
		if b.InFlight > 0 {
			line += fmt.Sprintf(" %s=%d", nameOfEndpoint(b.Addr), b.InFlight)
		}
		if b.Health.Ejected {
			line += fmt.Sprintf(" %s=ejected", nameOfEndpoint(b.Addr))
		}
	}
	lines = append(lines, "in flight:"+cmp.Or(line, " none"))
	s := w.Stats()
	for _, n := range []struct {
		of    string
		count uint64
	}{{"answered", s.Answered}, {"refused", s.Refused}, {"silent", s.Silent}, {"retried", s.Retried}} {
		if n.count > 0 {
			lines = append(lines, fmt.Sprintf("%s: %d", n.of, n.count))
		}
	}
	return lines
}

// follows has the states that a flow may have after another one, unless a first packet has come.
var follows = map[state][]state{
	asked:   {asked, missing, retrying, patient, answered},
	missing: {missing, retrying, patient, answered},
	patient: {patient, answered}, retrying: {retrying}, answered: {answered},
}

// step checks the flows after a step, which may have been a first packet.
func (w *world) step(packet bool) {
	now := make(map[flowKey]state)
	for i := range w.parts {
		for k, one := range w.parts[i].flows {
			now[k] = one.state
			w.holds(&one)
			was, known := w.was[k]
			if packet && one.state == asked || known && slices.Contains(follows[was], one.state) ||
				!known && (one.state == asked || one.state == answered) {
				continue
			}
			w.t.Errorf("line %d: flow of port %d is %s, and was in the table before: %t, %s", w.line, k.clientPort,
				one.state, known, was)
		}
	}
	w.was = now
}

// holds checks what is always true of a flow in the table.
func (w *world) holds(f *flow) {
	if f.choice.Valid() != (f.state != retrying) || f.id != 0 && f.state != answered ||
		f.state == retrying && f.failed == nil || f.service() != w.service.ID ||
		f.replaced && (w.service.Protocol != lb.UDP || f.state != asked && f.state != answered) ||
		f.isProbed() != (f.state != patient && f.state != answered) {
		w.t.Errorf("line %d: %s: %+v", w.line, f, *f)
	}
}

// Entries has the table be read as it was when the reading began.
func (w *world) Entries(ipv6 bool, _ func(), visit func(*flows.Entry)) error {
	if ipv6 {
		return nil
	}
	was := maps.Clone(w.table)
	for _, line := range w.during {
		w.do(strings.Fields(line))
	}
	for _, id := range slices.Sorted(maps.Keys(was)) {
		e := was[id]
		visit(&e)
		w.step(false)
	}
	return nil
}

// Find finds an entry.
func (w *world) Find(protocol lb.Protocol, client, asked netip.AddrPort) (e flows.Entry, ok bool, err error) {
	for _, e := range w.table {
		if e.Protocol == protocol && e.Src == client && e.Dst == asked {
			return e, true, nil
		}
	}
	return e, false, nil
}

// Delete deletes an entry.
func (w *world) Delete(e *flows.Entry) (ok bool, err error) {
	_, ok = w.table[e.ID]
	delete(w.table, e.ID)
	w.said = append(w.said, fmt.Sprintf("entry %d is deleted", e.ID))
	return ok, nil
}
