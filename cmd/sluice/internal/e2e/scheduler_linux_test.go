package e2e

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// turnout counts what the pods of a test have answered, so that a slow one can wait for the others whatever a machine
// has to do besides.
type turnout struct {
	mu      sync.Mutex
	more    sync.Cond
	answers int
	over    bool // no pod waits any more
}

// answer has a host answer connections with its name when the others have given so many answers meanwhile, until the
// test ends.
func (o *turnout) answer(t *testing.T, h *testbed.Host, behind int) {
	t.Helper()
	ln, err := h.Listen(t.Context(), "tcp", ":8080")
	testbed.Check(t, err)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				o.await(behind)
				_, _ = io.WriteString(c, h.Name)
				_ = c.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		o.end()
		_ = ln.Close()
		conns.Wait()
	})
}

// await counts an answer, after so many others.
func (o *turnout) await(others int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for until := o.answers + others; o.answers < until && !o.over; {
		o.more.Wait()
	}
	o.answers++
	o.more.Broadcast()
}

// end has no pod wait any more.
func (o *turnout) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	o.more.Broadcast()
}

// balanced writes Service web, by a scheduler, with a slice of its own for the endpoint of each pod, by weights.
func balanced(l *lab.Lab, scheduler string, weights ...int) {
	l.T.Helper()
	requesting(l, "sluice.io/scheduler: "+scheduler, weights...)
}

// requesting does so by annotations, and waits until they are in force.
func requesting(l *lab.Lab, annotations string, weights ...int) {
	l.T.Helper()
	documents := []string{testbed.Annotated(testbed.ServiceManifest("web", lab.WebAddr, "TCP", ""), annotations)}
	for i, w := range weights {
		slice := testbed.SliceManifest("web", i, 8080, "TCP", testbed.Addrs(l.Pods[i])...)
		documents = append(documents, testbed.Annotated(slice, fmt.Sprintf("sluice.io/weight: '%d'", w)))
	}
	l.Apply(func() { l.Write("web.yaml", documents...) })
}

// askAll has so many clients at a time ask Service web, and returns who answered. When all have been sent, sent is
// called.
func askAll(l *lab.Lab, clients, requests int, sent func()) (answers map[string]int) {
	l.T.Helper()
	answers = make(map[string]int)
	var mu sync.Mutex
	var asked atomic.Int64
	var asking sync.WaitGroup
	for range clients {
		asking.Go(func() {
			for asked.Add(1) <= int64(requests) { // so that all end together: who is left alone has turns
				name, err := l.Client.Who(lab.WebAddr)
				mu.Lock()
				if err != nil {
					l.T.Errorf("after %v: %v", answers, err)
				}
				answers[name]++
				mu.Unlock()
			}
			sent()
		})
	}
	asking.Wait()
	return answers
}

// TestSlowEndpoint: one of five endpoints answers when the others have answered 1,000 times. By least connections, the
// better of two and peak EWMA fewer than one client in 50 waits for it; in turns it would be one in five.
func TestSlowEndpoint(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	const requests = 2000
	for _, scheduler := range []string{"lc", "p2c", "ewma"} {
		t.Run(scheduler, func(t *testing.T) {
			l := lab.New(t, testbed.Config{Pods: 5})
			var pods turnout
			pods.more.L = &pods.mu
			for i, pod := range l.Pods {
				pods.answer(t, pod, []int{1000, 0}[min(i, 1)])
			}
			l.Write("web.yaml", testbed.ServiceManifest("web", lab.WebAddr, "TCP", ""))
			l.Start()
			balanced(l, scheduler, 1, 1, 1, 1, 1)
			answers := askAll(l, 20, requests, pods.end)
			t.Log(answers)
			if slow := answers[l.Pods[0].Name]; slow >= requests/50 {
				t.Errorf("%d of %d clients waited for the slow endpoint", slow, requests)
			}
		})
	}
}

// TestWeights: 70/30/0 is exact over 100 connections, as are changes of it.
func TestWeights(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	l.ServeWeb()
	l.Start()
	for _, weights := range [][]int{{70, 30, 0}, {1, 1, 2}, {0, 0, 5}} {
		balanced(l, "rr", weights...)
		sum := 0
		for _, w := range weights {
			sum += w
		}
		answers := askAll(l, 1, 100, func() {})
		for i, w := range weights {
			if got := answers[fmt.Sprint("pod-", i)]; got != 100*w/sum {
				t.Errorf("weights %v: of 100 connections %d go to pod-%d", weights, got, i)
			}
		}
	}
	balanced(l, "rr", 0, 0, 0)
	if got := l.Client.Ask("tcp", lab.WebAddr, testbed.Patience); got != testbed.Refused {
		t.Errorf("with all in maintenance: %s", got)
	}
}

// harmless are policies that do not concern what TestChangesUnderLoad's clients do.
var harmless = []string{
	"max-endpoint-connections: '64'", "max-connections: '1000'", "hold: 10s", "max-client-connections: '1000'",
	"idle-timeout: 1h", "max-client-connection-rate: '1000000'", "max-connection-duration: 1h", "on-endpoint-removed: reset",
	"half-close-timeout: 1h", "tcp-keepalive: 60s", "transparent: 'true'",
	"tcp-user-timeout: 1m", "connect-timeout: 5s", "connect-attempts: '8'", "slow-start: 1s",
	"outlier-ejection: 'false'",
}

// TestChangesUnderLoad: 100 changes of the algorithm, the weights and other policies, and three upgrades between them,
// lose neither connections that are there nor new ones.
func TestChangesUnderLoad(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	l.ServeEcho()
	socket := filepath.Join(t.TempDir(), "socket")
	l.Start("--handover-socket", socket)
	var held []*testbed.Talker
	for range 6 {
		held = append(held, l.Hold())
	}
	var stop atomic.Bool
	var made atomic.Int64
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for !stop.Load() {
				c, err := l.Client.Dial(t.Context(), "tcp", lab.WebAddr)
				if err != nil {
					t.Error(err)
					return
				}
				buf := make([]byte, 4)
				_ = c.SetDeadline(time.Now().Add(testbed.Patience))
				_, err = io.WriteString(c, "ping")
				if err == nil {
					_, err = io.ReadFull(c, buf)
				}
				if err != nil {
					t.Errorf("after %d connections: %v", made.Load(), err)
				}
				made.Add(1)
				_ = c.Close()
			}
		})
	}
	schedulers := []string{"lc", "p2c", "ewma", "random", "sh", "maglev", "rr", `"mh,mh-port"`}
	for i := range 100 {
		requesting(l,
			"sluice.io/scheduler: "+schedulers[i%len(schedulers)]+", sluice.io/"+harmless[i%len(harmless)],
			1+i%3, 1+i%2, i%5)
		if i%30 == 29 {
			l.HandOver("--handover-socket", socket)
		}
	}
	stop.Store(true)
	clients.Wait()
	for _, c := range held {
		c.Echoes()
	}
	t.Logf("%d connections during 100 changes", made.Load())
	for _, result := range []string{"refused", "timeout"} {
		if n := l.Metric(fmt.Sprintf("sluice_dials_total{protocol=\"TCP\",result=%q}", result)); n != 0 {
			t.Errorf("%v dials ended with %s", n, result)
		}
	}
}
