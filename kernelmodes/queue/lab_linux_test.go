package queue

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/flows/track"
	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/kernelmodes/nftables"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

func TestMain(m *testing.M) {
	os.Exit(testbed.Main(m, testbed.Programs{"serve": serve, "flood": flood, "sink": sink}))
}

var epoch = time.Now()

// newServer is one with engines of its own, for the host of the calling thread, that uses some bits of marks.
func newServer(marks uint32) *Server {
	ask, err := Probe(context.Background(), marks)
	if err != nil {
		panic(err)
	}
	return &Server{Ask: ask, Engines: [2]*nftables.Engine{{Ask: ask}, {Ask: ask, IPv6: true}},
		Tracker: track.Tracker{Balancer: new(balancer.Balancer), Watch: new(flows.Watch),
			Now: func() int64 { return int64(time.Since(epoch)) }, Shares: shares.Shares{Service: 80, Client: 90}}}
}

// node is a host that forwards as a server says.
type node struct {
	*lab.Lab
	*Server
	entries *conntrack.Conn
}

func newNode(t *testing.T, cfg testbed.Config) *node {
	t.Helper()
	return newNodeOf(t, cfg, Mask, nil)
}

// newNodeOf is newNode with other bits of marks, and a server that says how long verdicts take.
func newNodeOf(t *testing.T, cfg testbed.Config, marks uint32, took func(int, time.Duration)) *node {
	t.Helper()
	n := new(node)
	n.Lab = lab.New(t, cfg, func(family int) lab.Engine { return engine{n.Server, n.Server.Engines[family]} })
	n.Node.DoT(t, func() error { n.Server = newServer(marks); return nil })
	n.took = took
	n.Node.DoT(t, func() (err error) { n.entries, err = conntrack.Open(); return err })
	t.Cleanup(n.entries.Close)
	n.Node.DoT(t, n.Start)
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// engine has the Balancer know what an engine has written.
type engine struct {
	*Server
	*nftables.Engine
}

func (e engine) Sync(ctx context.Context, d lb.Delta, about lb.Node) error {
	err := e.Engine.Sync(ctx, d, about)
	if e.Changed(&d, e.IPv6); err != nil {
		return err
	}
	table, _, err := new(lb.Table).Next(d.Added, about)
	if err == nil {
		e.Balancer.Update(table)
	}
	return err
}

// answered checks that the server was asked, and had an answer that the kernel understood each time.
func (n *node) answered(want uint64) {
	n.T.Helper()
	s := n.Server.Stats()
	if s.Chosen < want || s.Unknown > 0 || s.Queues.Missed > 0 || s.Queues.Odd > 0 {
		n.T.Errorf("%+v, want at least %d chosen and nothing unknown or missed", s, want)
	}
}

func TestMatrix(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{RemotePods: 1})
	n.Matrix(func() { t.Log(n.Node.Run(t, "nft", "list", "ruleset")) })
	if !n.Verify() {
		t.Error("Verify finds something out of place")
	}
	n.answered(500)
}

// TestChoice: with a server flows have exact turns, and go where affinity says; without one, and with the next, they go
// on, and so does what is open.
func TestChoice(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 3})
	for _, p := range []lb.Protocol{lb.TCP, lb.UDP} {
		for _, v6 := range []bool{false, true} {
			port := uint16(80 + p)
			name := "plain-" + strings.ToLower(p.String()) + testbed.Family(v6)
			plain := lab.Simple(name, testbed.VIP(v6, 1).String(), port, p, n.Serving(3, p, v6, 8080)...)
			sticky := plain
			sticky.Name, sticky.AffinityTimeout = "sticky-"+plain.Name, int64(time.Hour)
			sticky.Addresses = []lb.Address{{Addr: lab.At(testbed.VIP(v6, 2), port)}}
			n.Sync(plain, sticky)
			ask := func(s lb.Service) string {
				t.Helper()
				who, _, _ := strings.Cut(lab.Ask(n.Client, p, s.Addresses[0].Addr), " ")
				return who
			}
			count := n.turns(plain, 9)
			for who, times := range count {
				if times != 3 || len(count) != 3 {
					t.Errorf("%s: %s had %d of 9 flows, %v; want 3 each; %+v", plain.ID, who, times, count, n.Stats())
				}
			}
			first := ask(sticky)
			for range 5 {
				if who := ask(sticky); who != first {
					t.Errorf("%s: %s, and before %s", sticky.ID, who, first)
				}
			}
			if p == lb.TCP && !v6 {
				n.ends(plain, ask)
			}
		}
	}
	n.answered(40)
}

// turns returns how often each pod answers when a Service is asked. All keep their ports meanwhile: a flow of UDP from
// the port of one before is the same for the kernel.
func (n *node) turns(s lb.Service, times int) map[string]int {
	n.T.Helper()
	count := make(map[string]int)
	for range times {
		c, err := n.Client.Dial(n.T.Context(), strings.ToLower(s.Protocol.String()), s.Addresses[0].Addr.String())
		testbed.Check(n.T, err)
		defer c.Close()
		if s.Protocol == lb.UDP {
			_, err = c.Write([]byte("?"))
		}
		answer := make([]byte, 1024)
		testbed.Check(n.T, errors.Join(err, c.SetDeadline(time.Now().Add(testbed.Patience))))
		got, err := c.Read(answer)
		testbed.Check(n.T, err)
		who, _, _ := strings.Cut(string(answer[:got]), " ")
		count[strings.TrimSpace(who)]++
	}
	return count
}

// startAgain starts the server after its Close. A program that another test has just forked has the sockets of the
// queues until it executes.
func (n *node) startAgain() {
	n.T.Helper()
	ctx, cancel := context.WithTimeout(n.T.Context(), testbed.Patience)
	defer cancel()
	n.Node.DoT(n.T, func() error { return n.Await(ctx) })
}

// ends has the server end, and another one start.
func (n *node) ends(s lb.Service, ask func(lb.Service) string) {
	n.T.Helper()
	testbed.Check(n.T, n.Server.Close())
	before := n.Server.Stats().Chosen
	count := make(map[string]int)
	for range 9 {
		count[ask(s)]++
	}
	if len(count) != 3 || n.Server.Stats().Chosen != before {
		n.T.Errorf("without a server flows went to %v, want all three", count)
	}
	n.startAgain()
	n.Node.DoT(n.T, func() error {
		if err := newServer(Mask).Start(); !errors.Is(err, syscall.EPERM) {
			n.T.Errorf("a second server: %v, want EPERM", err)
		}
		return nil
	})
}
