package handover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// relay stands between the two sides, and does something to one of their messages.
type relay struct {
	giver, taker *Channel // the relay's ends
	fault        fault
	at           int // number of the message

	mu    sync.Mutex
	count int
	seen  []string
}

// fault is what happens at a message.
type fault string

const (
	none     fault = "nothing"
	cut      fault = "the channel is cut before it"
	cutAfter fault = "the channel is cut after it"
	stall    fault = "it and all after it are late"
	strip    fault = "its file descriptors are missing"
)

// run forwards until either side ends.
func (r *relay) run() {
	var wg sync.WaitGroup
	wg.Go(func() { r.forward(r.taker, r.giver, "T") })
	wg.Go(func() { r.forward(r.giver, r.taker, "G") })
	wg.Wait()
	r.giver.Close()
	r.taker.Close()
}

func (r *relay) forward(from, to *Channel, who string) {
	defer func() {
		_ = unix.Shutdown(from.fd, unix.SHUT_RDWR)
		_ = unix.Shutdown(to.fd, unix.SHUT_RDWR)
	}()
	for {
		p, err := from.receivePiece(context.Background())
		if err != nil {
			return
		}
		r.mu.Lock()
		here := r.count == r.at
		r.count++
		r.seen = append(r.seen, fmt.Sprintf("%s%d", who, p.kind))
		r.mu.Unlock()
		if here && r.fault == stall {
			time.Sleep(500 * time.Millisecond) // longer than either side waits
		}
		if here && r.fault == strip {
			closeAll(p.fds)
			p.fds = nil
		}
		if !here || r.fault != cut {
			_ = to.send(context.Background(), p.kind, p.payload, p.fds...)
		}
		closeAll(p.fds)
		if here && (r.fault == cut || r.fault == cutAfter) {
			return
		}
	}
}

// pair returns both ends of a channel.
func pair(t *testing.T) (a, b *Channel) {
	t.Helper()
	a, file, err := Pair()
	testbed.Check(t, err)
	if b, err = FromParent(file); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// attempt has a new process take over through a relay, and returns how it went for each
// side. The loops of a giver that gave stay halted, as those of a process that ends at
// once do.
func (w *world) attempt(f fault, at int) (heir *State, seen []string, gave, took error) {
	w.t.Helper()
	g, gEnd := pair(w.t)
	x, xEnd := pair(w.t)
	r := &relay{giver: gEnd, taker: xEnd, fault: f, at: at}
	heir = newState(w.t, 3)
	var wg sync.WaitGroup
	wg.Go(r.run)
	wg.Go(func() {
		defer g.Close()
		ctx, cancel := context.WithTimeout(context.Background(), testbed.Patience)
		defer cancel()
		var h Hello
		if h, gave = g.Hello(ctx); gave == nil {
			var r Report
			r, gave = Give(ctx, g, h, w.old, new(Listeners))
			w.halted[w.old] = r.halted
		}
	})
	wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testbed.Patience)
		defer cancel()
		var problems error
		_, problems, took = Take(ctx, x, heir, new(Listeners), func() {}, func(time.Duration) {})
		if problems != nil {
			w.t.Logf("problems: %v", problems)
		}
	})
	wg.Wait()
	return heir, r.seen, gave, took
}

// TestHandover: everything crosses, and a second time.
func TestHandover(t *testing.T) {
	w := newWorld(t, 30, 10)
	// A client from before the process started, on whose clock that is below zero.
	early := lb.Client{Addr: netip.MustParseAddr("192.0.2.7"), Backend: w.backend, LastUsed: -int64(time.Minute)}
	w.old.LB.Memory().RememberClients(webID, []lb.Client{early})
	w.old.LB.ExceedsShare(webID, 5)
	paused := balancer.Conversation{Key: 7, Backend: w.answering, Answered: true, Time: eventloop.Now()}
	w.old.LB.Memory().RememberConversations(dnsID, []balancer.Conversation{paused})
	hasty := balancer.ClientRate{Addr: early.Addr, Rested: eventloop.Now() + int64(testbed.Patience)}
	w.old.LB.Memory().RememberClientRates(webID, []balancer.ClientRate{hasty})
	chain := []*State{w.old}
	for n := range 3 {
		heir, seen, gave, took := w.attempt(none, 0)
		if gave != nil || took != nil {
			t.Fatalf("gave: %v; took: %v", gave, took)
		}
		w.old = heir
		chain = append(chain, heir)
		w.works()
		if last := w.old.Journal.Last(); last != uint64(n+1) {
			t.Errorf("the journal has %d events, want one for each process", last)
		}
		if all := heir.LB.Memory().ServiceClients(webID); len(all) != 2 || all[0].Addr != early.Addr {
			t.Errorf("affinity is that of %+v, want that of %+v first", all, early)
		}
		known := 0
		heir.LB.Memory().Conversations(math.MinInt64, func(id lb.ID, all []balancer.Conversation) {
			if known += len(all); id != dnsID || all[0].Key != paused.Key || all[0].Backend != paused.Backend {
				t.Errorf("conversations of %s are %+v", id, all)
			}
		})
		if known != 1 {
			t.Errorf("%d conversations crossed, want one", known)
		}
		used := 0
		heir.LB.Memory().ClientRates(hasty.Rested-1, func(_ lb.ID, all []balancer.ClientRate) { used += len(all) })
		if used != 1 {
			t.Errorf("the rates of %d clients crossed, want that of one", used)
		}
		t.Logf("messages: %v", seen)
	}
	for _, s := range w.old.LB.Counters().All() {
		if want := map[lb.ID]uint64{webID: 5}[s.ID]; s.OverShare != want {
			t.Errorf("%v has exceeded its share %d times, want %d", s.ID, s.OverShare, want)
		}
	}
	if s := w.old.TCP.Stats(); s.Accepted != 33 || s.ClientResets+s.BackendResets > 0 {
		t.Errorf("stats %+v, want 33 connections accepted and no reset", s)
	}
	w.end(chain...)
}

// TestFaults: whatever happens to whichever message, afterwards all connections are alive
// on exactly one side, and the other has let go of them.
func TestFaults(t *testing.T) {
	w := newWorld(t, 6, 3)
	heir, clean, gave, took := w.attempt(none, 0)
	if gave != nil || took != nil {
		t.Fatalf("gave: %v; took: %v", gave, took)
	}
	w.end(w.old, heir)
	faults := []fault{cut, cutAfter, strip, stall}
	if testing.Short() {
		faults = faults[:len(faults)-1]
	}
	for _, f := range faults {
		t.Run(string(f), func(t *testing.T) {
			before := openFiles(t)
			w := newWorld(t, 6, 3)
			var past []*State
			for at := range clean {
				heir, seen, gave, took := w.attempt(f, at)
				what := fmt.Sprintf("%s: message %d (%s)", f, at, clean[at])
				if (gave == nil) != (took == nil) {
					t.Fatalf("%s: gave: %v; took: %v; messages %v", what, gave, took, seen)
				}
				if took == nil {
					w.old, heir = heir, w.old
				} else if errors.Is(gave, context.DeadlineExceeded) && f != stall {
					t.Errorf("%s: only a timeout has ended it: %v", what, gave)
				}
				w.works()
				if t.Failed() {
					t.Fatalf("%s: gave: %v; took: %v; messages %v", what, gave, took, seen)
				}
				if w.halted[heir] == nil { // else its connections are another's
					w.close(heir)
				} else {
					past = append(past, heir)
				}
			}
			w.end(append(past, w.old)...)
			most := before + len(w.conns) + len(w.flows) + 8
			testbed.Eventually(t, "no process has descriptors left over", func() bool { return openFiles(t) <= most })
		})
	}
}

// TestPieces: a message of any length, and with any number of descriptors, arrives whole.
func TestPieces(t *testing.T) {
	before := openFiles(t)
	a, b := pair(t)
	null, err := os.Open(os.DevNull)
	testbed.Check(t, err)
	defer null.Close()
	payload, fds := bytes.Repeat([]byte("0123456789"), 20_000), make([]int, 600)
	for i := range fds {
		fds[i] = int(null.Fd())
	}
	var all sync.WaitGroup
	all.Go(func() {
		if err := errors.Join(a.send(t.Context(), connsMsg, payload, fds...), a.send(t.Context(), flowsMsg, nil, fds...),
			a.send(t.Context(), readyMsg, nil), a.try(connsMsg|goesOn, payload[:1], fds[:1]...)); err != nil {
			t.Error(err)
		}
		a.Close()
	})
	for _, want := range []message{{connsMsg, payload, fds}, {flowsMsg, nil, fds}, {readyMsg, nil, nil}} {
		m, err := b.receive(t.Context())
		if err != nil || m.kind != want.kind || !bytes.Equal(m.payload, want.payload) || len(m.fds) != len(want.fds) {
			t.Errorf("received message %d of %d bytes and %d descriptors, %v; want %d, %d, %d",
				m.kind, len(m.payload), len(m.fds), err, want.kind, len(want.payload), len(want.fds))
		}
		closeAll(m.fds)
	}
	if _, err := b.receive(t.Context()); !errors.Is(err, ErrEnded) || len(b.cut) != 1 {
		t.Errorf("of a message that was cut off: %v, and descriptors %v", err, b.cut)
	}
	b.Close()
	all.Wait()
	if after := openFiles(t); after > before+1 {
		t.Errorf("%d descriptors are left over", after-before-1)
	}
}

// TestStrangers: a process that connects and leaves, or sends nonsense, does not block others;
// a folder that other users can write to is refused; and the socket of a process that has
// ended is as none.
func TestStrangers(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), testbed.Patience)
	defer cancel()
	path := filepath.Join(t.TempDir(), "run", "handover.sock")
	if ch, err := Dial(path); ch != nil || err != nil {
		t.Errorf("with nothing there: %v, %v", ch, err)
	}
	listen := func() (*Socket, error) {
		t.Helper()
		fd, err := NewSocket()
		testbed.Check(t, err)
		return Listen(fd, path)
	}
	s, err := listen()
	testbed.Check(t, err)
	dial := func() *Channel {
		t.Helper()
		ch, err := Dial(path)
		if ch == nil || err != nil {
			t.Fatalf("nobody is there: %v", err)
		}
		t.Cleanup(ch.Close)
		return ch
	}
	dial().Close()
	nonsense := dial()
	testbed.Check(t, nonsense.try(readyMsg, nil))
	asking := dial()
	testbed.Check(t, asking.sendJSON(ctx, helloMsg, Hello{Upgrade: true}))
	accept := func() (*Channel, Hello, error) {
		t.Helper()
		ch, err := s.Accept(ctx)
		testbed.Check(t, err)
		h, err := ch.Hello(ctx)
		return ch, h, err
	}
	if _, _, err := accept(); !errors.Is(err, ErrEnded) {
		t.Errorf("a process that only looks: %v", err)
	}
	ch, _, err := accept()
	if err == nil || !strings.Contains(err.Error(), "hello") {
		t.Errorf("nonsense: %v", err)
	}
	_ = ch.Fail(err)
	if _, got := nonsense.receive(ctx); got == nil || got.Error() != err.Error() {
		t.Errorf("the process that sent nonsense gets %v", got)
	}
	ch, h, err := accept()
	if err != nil || !h.Upgrade {
		t.Fatalf("the request is %+v, %v", h, err)
	}
	ch.Upgraded(42)
	var pid int
	if _, err := asking.expectJSON(ctx, upgradedMsg, &pid); err != nil || pid != 42 {
		t.Errorf("the answer is %d, %v", pid, err)
	}
	next, err := listen() // of the next process
	testbed.Check(t, err)
	s.Remove() // leaves alone what is not its own
	dial()
	_ = s.file.Close()
	_ = next.file.Close()
	if ch, err := Dial(path); ch != nil || err != nil {
		t.Errorf("with a socket of a process that has ended: %v, %v", ch, err)
	}
	next.Remove()
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket is still there")
	}
	testbed.Check(t, os.Chmod(filepath.Dir(path), 0o770))
	if _, err := listen(); err == nil || !strings.Contains(err.Error(), "other users") {
		t.Errorf("a folder that others can write to: %v", err)
	}
}

// TestVersions: a process that speaks another version of the protocol is refused with a clear
// error, and changes nothing.
func TestVersions(t *testing.T) {
	w := newWorld(t, 1, 0)
	old, heir := pair(t)
	defer old.Close()
	defer heir.Close()
	ctx, cancel := context.WithTimeout(context.Background(), testbed.Patience)
	defer cancel()
	testbed.Check(t, heir.sendJSON(ctx, helloMsg, Hello{Version: version + 1, PID: 1}))
	h, err := old.Hello(ctx)
	testbed.Check(t, err)
	_, gave := Give(ctx, old, h, w.old, new(Listeners))
	_, took := heir.receive(ctx)
	for _, err := range []error{gave, took} {
		if want := fmt.Sprintf("version %d of the hand-over protocol", version+1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("another version: %v, want %q", err, want)
		}
	}
	w.works()
	w.end(w.old)
}
