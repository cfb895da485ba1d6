package handover

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/flows/report"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
	"github.com/sluice-lb/sluice/sctp"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

var (
	local = netip.MustParseAddrPort("127.0.0.1:0")
	web   = netip.MustParseAddrPort("10.96.0.1:80")
	webID = lb.ID{Namespace: "default", Name: "web", Protocol: lb.TCP}
	dnsID = lb.ID{Namespace: "default", Name: "dns", Protocol: lb.UDP}
	dns   = lb.Frontend{Protocol: lb.UDP, Addr: netip.MustParseAddrPort("10.96.0.2:53")}
)

// newState returns the rooms of a process, in this one, with nothing in them.
func newState(t *testing.T, loops int) *State {
	t.Helper()
	group, err := eventloop.NewGroup(loops)
	testbed.Check(t, err)
	b := new(balancer.Balancer)
	e := &State{
		Program: "test", Loops: group, LB: b, Journal: journal.New(zap.NewNop()),
		Kernel: report.New(report.Config{}),
		TCP: &tcp.Server{Config: tcp.Config{Loops: group, LB: b,
			OriginalDst: func(int) (netip.AddrPort, error) { return web, nil }}},
		UDP:      &udp.Server{Loops: group, LB: b, IdleTimeout: time.Minute},
		SCTP:     &sctp.Server{Config: sctp.Config{Config: tcp.Config{Loops: group, LB: b}}},
		Patience: 250 * time.Millisecond, Freeze: 250 * time.Millisecond,
	}
	e.Agent = agent.New(agent.Config{LB: b, Now: eventloop.Now, Log: zap.NewNop(),
		Servers: map[lb.Protocol]agent.Sockets{lb.TCP: agent.TCP(e.TCP), lb.UDP: e.UDP}, Proxy: e.TCP})
	return e
}

// world is clients and servers with the rooms of a process between them.
type world struct {
	t         *testing.T
	old       *State
	halted    map[*State]func() // makes the loops of a state that was given go on
	tcpAddr   netip.AddrPort
	udpAddr   netip.AddrPort
	backend   netip.AddrPort // of web
	answering netip.AddrPort // that of dns
	conns     []*net.TCPConn
	flows     []*net.UDPConn
	answers   []string // of the flows: each its own
}

// newWorld opens connections and flows through the rooms of a process.
func newWorld(t *testing.T, conns, flows int) *world {
	t.Helper()
	w := &world{t: t, old: newState(t, 2), halted: map[*State]func(){}}
	var backends []lb.Backend
	for range 2 {
		server := testbed.Keep(t)(testbed.HereT(t).EchoTCP(local.String()))
		backends = append(backends, lb.Backend{Addr: server.Addr, Ready: true, Serving: true})
	}
	w.backend, w.answering = backends[0].Addr, tellUDP(t)
	w.old.LB.Seed = 42
	if err := w.old.Agent.Adopt(agent.State{History: agent.History{Applied: 1}, Services: []*lb.Service{
		{ID: webID, Addresses: []lb.Address{{Addr: web}}, AffinityTimeout: int64(time.Hour),
			Backends: backends, Policies: &lb.Policies{MaxClientConnectionRate: 1000}},
		{ID: dnsID, Addresses: []lb.Address{{Addr: dns.Addr}},
			Backends: []lb.Backend{{Addr: w.answering, Ready: true, Serving: true}}},
	}}); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.tcpAddr, err = w.old.TCP.ListenSteered(local); err != nil {
		t.Fatal(err)
	}
	if w.udpAddr, err = w.old.UDP.Listen(dns, local); err != nil {
		t.Fatal(err)
	}
	for range conns {
		w.open()
	}
	for range flows {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(w.udpAddr))
		testbed.Check(t, err)
		t.Cleanup(func() { _ = c.Close() })
		w.flows = append(w.flows, c)
		w.answers = append(w.answers, ask(t, c))
	}
	if conns > 1 {
		testbed.Check(t, w.conns[1].CloseWrite())
	}
	return w
}

// end closes the clients, waits until the process that serves has noticed, and closes the
// servers of all.
func (w *world) end(all ...*State) {
	w.t.Helper()
	for _, c := range w.conns {
		_ = c.Close()
	}
	testbed.Eventually(w.t, "all connections have ended", func() bool { return all[len(all)-1].TCP.Stats().Active == 0 })
	for _, e := range all {
		w.close(e)
	}
}

// close closes the servers of a process, also if their loops are halted for good: then no
// process is left that could be waited for.
func (w *world) close(e *State) {
	w.t.Helper()
	if resume := w.halted[e]; resume != nil {
		resume()
	}
	e.TCP.Close()
	e.UDP.Close()
	e.SCTP.Close()
	if err := e.Loops.Close(); err != nil {
		w.t.Error(err)
	}
}

// open opens a connection and waits for an echo.
func (w *world) open() {
	w.t.Helper()
	c, err := net.Dial("tcp", w.tcpAddr.String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	w.conns = append(w.conns, c.(*net.TCPConn))
	if err := echo(c, "hello"); err != nil {
		w.t.Fatal(err)
	}
}

// works wants every connection and flow to go on where it was, and new ones to be made.
func (w *world) works() {
	w.t.Helper()
	last := w.old.Journal.Last()
	w.old.Journal.Remember(journal.Entry{Reason: "Works"})
	if is := w.old.Journal.Last(); is != last+1 {
		w.t.Errorf("after event %d there is event %d", last, is)
	}
	for i, c := range w.conns {
		_ = c.SetDeadline(time.Now().Add(testbed.Patience))
		if i == 1 { // its client has ended its stream, and the server with it
			if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
				w.t.Errorf("the half-closed connection: %q, %v", b, err)
			}
			continue
		}
		if err := echo(c, "ping"); err != nil {
			w.t.Errorf("connection %d: %v", i, err)
		}
	}
	for i, c := range w.flows {
		if got := ask(w.t, c); got != w.answers[i] {
			w.t.Errorf("flow %d is answered through %q, was %q", i, got, w.answers[i])
		}
	}
	w.open()
}

func echo(c net.Conn, what string) error {
	_ = c.SetDeadline(time.Now().Add(testbed.Patience))
	got := make([]byte, len(what))
	if _, err := io.WriteString(c, what); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != what {
		return errors.New("the echo is " + string(got))
	}
	return nil
}

func ask(t *testing.T, c *net.UDPConn) string {
	t.Helper()
	buf := make([]byte, 100)
	_ = c.SetDeadline(time.Now().Add(testbed.Patience))
	if _, err := c.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	n, err := c.Read(buf)
	testbed.Check(t, err)
	return string(buf[:n])
}

// tellUDP answers with where the question came from, which tells flows apart.
func tellUDP(t *testing.T) netip.AddrPort {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
	testbed.Check(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 100)
		for {
			_, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort([]byte(from.String()), from)
		}
	})
	t.Cleanup(func() {
		_ = c.Close()
		wg.Wait()
	})
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := testbed.OpenFiles(os.Getpid())
	testbed.Check(t, err)
	return len(files)
}

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }
