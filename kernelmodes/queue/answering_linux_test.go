package queue

import (
	"errors"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// TestFewEvents: of connections to a Service of which it does not matter what is in flight conntrack says only that
// they are answered, and nothing is kept of them. When it matters, what is open is found, and what comes then is
// followed to its end.
func TestFewEvents(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(lab.Family(v6), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, testbed.Config{Pods: 3})
			s := n.echoing(lb.TCP, v6, lb.Policies{})
			n.Sync(s)
			if !n.Verify() {
				t.Error("Verify finds something out of place")
			}
			testbed.Check(t, n.following.events.Everything())
			before := n.Stats().Flows.Events
			all := n.open(&s, 9)
			testbed.Eventually(t, "each answer is heard of", func() bool { return n.Stats().Flows.Answered == 9 })
			for _, c := range all[:3] {
				testbed.Check(t, c.Close())
			}
			testbed.Eventually(t, "three have ended", func() bool { return n.inState(v6, conntrack.TCPTimeWait) == 3 })
			n.awaits(&s, 0, 0, 0)
			if got := n.Stats().Flows; got.Events-before != 9 || got.Known != 0 {
				t.Errorf("%+v, want nine events more than %d, and none known", got, before)
			}
			testbed.Check(t, n.following.events.All())

			s.Policies = &lb.Policies{Scheduler: "lc"}
			n.Sync(s)
			n.Read()
			n.awaits(&s, 2, 2, 2)
			more := n.open(&s, 3)
			n.awaits(&s, 3, 3, 3)
			for _, c := range append(more, all[3:]...) {
				testbed.Check(t, c.Close())
			}
			n.awaits(&s, 2, 2, 2) // of the first ones it is not heard
			n.Read()
			n.awaits(&s, 0, 0, 0)
		})
	}
}

// inState returns how many connections are in a state.
func (n *node) inState(v6 bool, state conntrack.State) (count int) {
	testbed.Check(n.T, n.following.entries.Entries(v6, nil, func(e *conntrack.Entry) {
		if e.State == state {
			count++
		}
	}))
	return count
}

// TestAnswering: of more connections than there are places the last ones are known.
func TestAnswering(t *testing.T) {
	var a answering
	at := func(i uint32) *flowKey {
		k := keyOf(lb.TCP, lab.At(lab.VIP(false, 9), uint16(i)), lab.At(lab.VIP(false, int(i>>16)), 80))
		return &k
	}
	const many = 4 * manyAnswering
	for i := range uint32(many) {
		a.add(at(i), i+1)
		if got := a.of(at(i)); got != i+1 {
			t.Fatalf("connection %d has endpoint %d, want %d", i, got, i+1)
		}
	}
	known := 0
	for i := range uint32(many) {
		switch a.of(at(i)) {
		case i + 1:
			known++
		case 0:
		default:
			t.Errorf("connection %d has the endpoint of another", i)
		}
	}
	if known < manyAnswering/2 || known > manyAnswering {
		t.Errorf("%d are known, want most of %d", known, manyAnswering)
	}
	a.forget(at(many))          // which is not known
	other := a.of(at(many - 2)) // 0: the last one has its place
	if a.forget(at(many - 1)); a.of(at(many-1)) != 0 || a.of(at(many-2)) != other {
		t.Error("another one is forgotten than should be")
	}
	if got := new(answering).of(at(0)); got != 0 {
		t.Errorf("without any: %d", got)
	}
}

// TestDrained: a connection that is not followed any more ends when an operator has drained its endpoint and its
// entry was deleted, of which conntrack says nothing; others go on.
func TestDrained(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 4})
	s := n.echoing(lb.TCP, false, lb.Policies{})
	s.Backends = s.Backends[:3]
	n.Sync(s)
	var all []net.Conn
	for len(all) < 6 {
		c, err := n.Pods[3].Dial(t.Context(), "tcp", s.Addresses[0].Addr.String()) // what is masqueraded gets another port
		testbed.Check(t, err)
		defer c.Close()
		(&testbed.Talker{T: t, Conn: c}).Echoes()
		all = append(all, c)
	}
	testbed.Eventually(t, "answers are heard of", func() bool {
		f := n.Stats().Flows
		return f.Answered == uint64(len(all)) && f.Known == 0
	})
	left := n.at(all, &s, 0)
	drains := lb.NewDrains([]lb.Drain{{Addr: s.Backends[0].Addr, Deadline: n.Now()}}, nil)
	n.Balancer.Drain(drains)
	n.Sync(*drains.Mark(&s, n.Now()))
	testbed.Check(t, n.following.events.Only(nil))
	n.Node.Run(t, "conntrack", "-D", "-p", "tcp")
	for _, c := range all {
		if !slices.Contains(left, c) {
			(&testbed.Talker{T: t, Conn: c}).Echoes()
			continue
		}
		testbed.Check(t, c.SetDeadline(time.Now().Add(testbed.Patience)))
		_, err := c.Write([]byte("?"))
		testbed.Check(t, err)
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a connection of the drained endpoint: %v, want a reset", err)
		}
	}
	if len(left) != len(all)/3 {
		t.Errorf("%d of %d connections were at the first endpoint, %+v", len(left), len(all), n.Stats().Flows)
	}
}
