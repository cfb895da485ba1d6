package e2e

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
)

// answerAfter has a host answer connections with its name after some time, until the test ends.
func answerAfter(t *testing.T, h *testbed.Host, d time.Duration) {
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
				time.Sleep(d) // the work that it does
				_, _ = io.WriteString(c, h.Name)
				_ = c.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		conns.Wait()
	})
}

// balanced writes Service web, by a scheduler, with a slice of its own for the endpoint of each pod, by weights.
func balanced(l *lab.Lab, scheduler string, weights ...int) {
	l.T.Helper()
	requesting(l, "sluice.io/scheduler: "+scheduler, weights...)
}

// requesting does so by annotations, and waits until they are in force.
func requesting(l *lab.Lab, annotations string, weights ...int) {
	l.T.Helper()
	documents := []string{strings.Replace(testbed.ServiceManifest("web", lab.WebAddr, "TCP", ""), "\nspec:",
		"\n  annotations:\n    "+annotations+"\nspec:", 1)}
	for i, w := range weights {
		slice := testbed.SliceManifest("web", i, 8080, "TCP", testbed.Addrs(l.Pods[i])...)
		documents = append(documents, strings.Replace(slice, "\n  labels:",
			fmt.Sprintf("\n  annotations:\n    sluice.io/weight: %q\n  labels:", fmt.Sprint(w)), 1))
	}
	was := l.Metric(`sluice_syncs_total{result="ok"}`)
	l.Write("web.yaml", documents...)
	l.Eventually("the change is in force", func() bool { return l.Metric(`sluice_syncs_total{result="ok"}`) > was })
}

// askAll has so many clients at a time ask Service web, and returns how long each answer took, sorted, and who gave it.
func askAll(l *lab.Lab, clients, requests int) (took []time.Duration, answers map[string]int) {
	l.T.Helper()
	answers = make(map[string]int)
	var mu sync.Mutex
	var asked atomic.Int64
	var asking sync.WaitGroup
	for range clients {
		asking.Go(func() {
			for asked.Add(1) <= int64(requests) { // so that all end together: who is left alone has turns
				start := time.Now()
				name, err := lab.Who(l.Client, lab.WebAddr)
				since := time.Since(start)
				mu.Lock()
				if err != nil {
					l.T.Errorf("after %v: %v", answers, err)
				}
				took = append(took, since)
				answers[name]++
				mu.Unlock()
			}
		})
	}
	asking.Wait()
	slices.Sort(took)
	return took, answers
}

// TestSlowEndpoint: one of five endpoints takes 250 times as long as the others. In turns one client in five waits for
// it, and by least connections, the better of two and peak EWMA fewer than one in 50.
func TestSlowEndpoint(t *testing.T) {
	l := lab.New(t, testbed.Config{Pods: 5})
	for i, pod := range l.Pods {
		answerAfter(t, pod, []time.Duration{500 * time.Millisecond, 2 * time.Millisecond}[min(i, 1)])
	}
	l.Write("web.yaml", testbed.ServiceManifest("web", lab.WebAddr, "TCP", ""))
	l.Start()
	p98 := func(scheduler string, requests int) time.Duration {
		balanced(l, scheduler, 1, 1, 1, 1, 1)
		took, answers := askAll(l, 20, requests)
		t.Logf("%s: p50 %v, p98 %v, p99 %v, %d of %d to the slow one", scheduler, took[requests/2],
			took[requests*98/100], took[requests*99/100], answers["pod-0"], requests)
		return took[requests*98/100]
	}
	turns := p98("rr", 500)
	for _, scheduler := range []string{"lc", "p2c", "ewma"} {
		if got := p98(scheduler, 8000); got > turns/4 {
			t.Errorf("%s: the p98 is %v, and %v in turns", scheduler, got, turns)
		}
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
		_, answers := askAll(l, 1, 100)
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
	"idle-timeout: 1h", "max-client-connection-rate: '1000000'", "max-connection-duration: 1h", "drain: reset",
	"client-half-close-timeout: 1h", "server-half-close-timeout: 1h", "tcp-keepalive-idle: 60s", "transparent: 'true'",
	"tcp-user-timeout: 1m", "connect-timeout: 5s", "connect-attempts: '8'", "slow-start: 1s",
	"outlier-ejection: 'false'",
}

// TestChangesUnderLoad: 100 changes of the algorithm, the weights and other policies, and three upgrades between them,
// lose neither connections that are there nor new ones.
func TestChangesUnderLoad(t *testing.T) {
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
			"sluice.io/scheduler: "+schedulers[i%len(schedulers)]+"\n    sluice.io/"+harmless[i%len(harmless)],
			1+i%3, 1+i%2, i%5)
		if i%30 == 29 {
			before := l.Process
			l.Launch(l.Command("--manifests", l.Dir, "--handover-socket", socket))
			<-before.Done()
		}
	}
	stop.Store(true)
	clients.Wait()
	for _, c := range held {
		c.Echoes()
	}
	t.Logf("%d connections during 100 changes", made.Load())
	for _, result := range []string{"refused", "timeout"} {
		if n := l.Metric(fmt.Sprintf("sluice_tcp_dials_total{result=%q}", result)); n != 0 {
			t.Errorf("%v dials ended with %s", n, result)
		}
	}
}
