package queue

import (
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// TestFlight: the datagrams that a client sends at once go to one endpoint, whether they are equal or differ in length,
// come from one core or from several, or come in fragments.
func TestFlight(t *testing.T) {
	n := newNode(t, testbed.Config{Pods: 2})
	s := lab.Simple("web", testbed.VIP(false, 1).String(), 80, lb.UDP, n.Serving(2, lb.UDP, false, 8080)...)
	n.Sync(s)
	for name, send := range map[string]func(*testing.T, net.Conn) int{
		"lengths": func(t *testing.T, c net.Conn) int { return write(t, c, "?", "??", "???", "????") },
		"fragments": func(t *testing.T, c net.Conn) int {
			return write(t, c, "?", strings.Repeat("?", 4000), "??")
		},
		"cores": fromEachCore,
	} {
		t.Run(name, func(t *testing.T) {
			for range 50 {
				c, err := n.Client.Dial(t.Context(), "udp", s.Addresses[0].Addr.String())
				testbed.Check(t, err)
				if who := answerers(t, c, send(t, c)); len(who) != 1 {
					t.Fatalf("one flow was answered by %v", who)
				}
				testbed.Check(t, c.Close())
			}
		})
	}
}

// TestMarks: whichever bits of marks are used, the process chooses endpoints, and what another program has set in them
// leads no client to an endpoint of another Service, with this process and without it.
func TestMarks(t *testing.T) {
	for _, marks := range []uint32{Mask, 0x7fff8000, 0xffff8000} {
		t.Run(fmt.Sprintf("%#x", marks), func(t *testing.T) {
			n := newNodeOf(t, testbed.Config{Pods: 2}, marks, nil)
			backends := n.Serving(2, lb.TCP, false, 8080)
			hashed := lab.Simple("hashed", testbed.VIP(false, 3).String(), 80, lb.TCP, backends...)
			hashed.Policies = &lb.Policies{Scheduler: "sh"} // without a process the kernel takes turns
			one := lab.Simple("one", testbed.VIP(false, 1).String(), 80, lb.TCP, backends[0])
			other := lab.Simple("other", testbed.VIP(false, 2).String(), 80, lb.TCP, backends[1])
			n.Sync(one, other, hashed)
			own, foreign := n.Server.Engines[0].Number(backends[0].Addr), n.Server.Engines[0].Number(backends[1].Addr)
			if first := marks & -marks; own+foreign != 3*first || own == 0 || foreign == 0 {
				t.Fatalf("numbers %#x and %#x, want the first two of %#x", own, foreign, marks)
			}
			n.Node.Run(t, "iptables-nft", "-t", "mangle", "-A", "PREROUTING", "-p", "tcp", "-j", "MARK", "--set-xmark",
				fmt.Sprintf("%#x/%#x", foreign, marks))
			asks := func(of lb.Service, when, want string) {
				t.Helper()
				for range 4 {
					if got := lab.Ask(n.Client, lb.TCP, of.Addresses[0].Addr); !strings.HasPrefix(got, want+" ") {
						t.Errorf("%s, %s: %q, want %s", of.Name, when, got, want)
					}
				}
			}
			asks(one, "with a process", n.Pods[0].Name)
			first, _, _ := strings.Cut(lab.Ask(n.Client, lb.TCP, hashed.Addresses[0].Addr), " ")
			asks(hashed, "with a process", first)
			n.answered(9)
			testbed.Check(t, n.Server.Close())
			asks(one, "without one", n.Pods[0].Name)
		})
	}
}

func write(t *testing.T, c net.Conn, datagrams ...string) (sent int) {
	t.Helper()
	for _, d := range datagrams {
		_, err := c.Write([]byte(d))
		testbed.Check(t, err)
	}
	return len(datagrams)
}

// fromEachCore sends equal datagrams from all cores at the same time.
func fromEachCore(t *testing.T, c net.Conn) (sent int) {
	t.Helper()
	var cores unix.CPUSet
	testbed.Check(t, unix.SchedGetaffinity(0, &cores))
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	for core := range 1024 {
		if !cores.IsSet(core) {
			continue
		}
		sent++
		ready.Add(1)
		done.Go(func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			var one unix.CPUSet
			one.Set(core)
			_ = unix.SchedSetaffinity(0, &one)
			ready.Done()
			<-start
			_, _ = c.Write([]byte("?"))
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
	return sent
}

// answerers returns which endpoints send some answers.
func answerers(t *testing.T, c net.Conn, answers int) map[string]bool {
	t.Helper()
	who, buffer := make(map[string]bool), make([]byte, 8192)
	testbed.Check(t, c.SetDeadline(time.Now().Add(testbed.Patience)))
	for range answers {
		n, err := c.Read(buffer)
		testbed.Check(t, err)
		name, _, _ := strings.Cut(string(buffer[:n]), " ")
		who[name] = true
	}
	return who
}

// TestFewEvents: without a policy that counts connections in flight, conntrack reports only that connections are
// answered, and nothing is kept of them. With such a policy open connections are found, and followed to their end.
func TestFewEvents(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(testbed.Family(v6), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, testbed.Config{Pods: 3})
			s := n.echoing(lb.TCP, v6, lb.Policies{})
			n.Sync(s)
			if !n.Verify() {
				t.Error("Verify finds something out of place")
			}
			before := n.Watch.Stats().Handled
			all := n.open(&s, 9)
			testbed.Eventually(t, "each answer is heard of", func() bool { return n.Stats().Flows.Answered == 9 })
			for _, c := range all[:3] {
				testbed.Check(t, c.Close())
			}
			testbed.Eventually(t, "three have ended", func() bool { return n.inState(v6, conntrack.TCPTimeWait) == 3 })
			n.awaits(&s, 0, 0, 0)
			if events := n.Watch.Stats().Handled - before; events != 9 || n.Stats().Flows.Known != 0 {
				t.Errorf("%d events, want nine, and none known of %+v", events, n.Stats().Flows)
			}

			s.Policies = &lb.Policies{Scheduler: "lc"}
			n.Sync(s)
			n.RequestReading()
			n.awaits(&s, 2, 2, 2)
			more := n.open(&s, 3)
			n.awaits(&s, 3, 3, 3)
			for _, c := range append(more, all[3:]...) {
				testbed.Check(t, c.Close())
			}
			n.awaits(&s, 2, 2, 2) // of the first ones it is not heard
			n.RequestReading()
			n.awaits(&s, 0, 0, 0)
		})
	}
}

// inState returns how many connections are in a state.
func (n *node) inState(v6 bool, state conntrack.State) (count int) {
	testbed.Check(n.T, n.entries.Entries(v6, nil, func(e *conntrack.Entry) {
		if e.State == state {
			count++
		}
	}))
	return count
}
