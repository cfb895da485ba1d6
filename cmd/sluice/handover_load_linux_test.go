package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/bench/testbed"
)

var (
	upgrades = flag.Int("upgrades", 6, "number of upgrades in a row under load")
	holding  = flag.Int("held", 1000, "connections held throughout the upgrades")
	idle     = flag.Int("idle", 5000, "idle connections that cross")
	asking   = flag.Int("asking", 200, "UDP flows throughout the upgrades")
)

// talk sends a stream in pieces with pauses until stop, ends it, and checks that what
// comes is another stream, to its end. Each piece is as long as chance will have it; some
// talkers end their stream long before stop.
func talk(c *net.TCPConn, sends, gets uint64, stop <-chan struct{}) (sent, got int64, err error) {
	r := rand.New(rand.NewPCG(sends, gets))
	early := time.Duration(-1)
	if r.IntN(10) == 0 {
		early = time.Duration(r.IntN(int(5 * time.Second)))
	}
	var wg sync.WaitGroup
	var sendErr error
	wg.Go(func() {
		from, start, buf := stream(sends), time.Now(), make([]byte, 256<<10)
		for running := true; running; {
			n := 1 + r.IntN(2048)
			if r.IntN(50) == 0 {
				n = 1 + r.IntN(len(buf))
			}
			_, _ = io.ReadFull(from, buf[:n])
			if _, sendErr = c.Write(buf[:n]); sendErr != nil {
				return
			}
			sent += int64(n)
			select {
			case <-stop:
				running = false
			case <-time.After(time.Duration(r.IntN(int(time.Second)))):
				running = early < 0 || time.Since(start) < early
			}
		}
		sendErr = c.CloseWrite()
	})
	want, buf, expect := stream(gets), make([]byte, 16<<10), make([]byte, 16<<10)
	for {
		n, readErr := c.Read(buf)
		_, _ = io.ReadFull(want, expect[:n])
		if !bytes.Equal(buf[:n], expect[:n]) {
			err = fmt.Errorf("wrong bytes after %d", got)
			break
		}
		got += int64(n)
		if readErr != nil {
			if readErr != io.EOF {
				err = readErr
			}
			break
		}
	}
	if err != nil {
		_ = c.Close()
	}
	wg.Wait()
	return sent, got, errors.Join(err, sendErr)
}

// load is what goes through the program while it is upgraded.
type load struct {
	n    *line
	stop chan struct{}
	wg   sync.WaitGroup

	failed                atomic.Int64 // connections that were refused, reset, or got wrong bytes
	bytes, fresh          atomic.Int64
	asked, lost, stranger atomic.Int64
}

func (l *load) fail(format string, args ...any) {
	if l.failed.Add(1) <= 10 {
		l.n.t.Errorf(format, args...)
	}
}

// serve has every pod talk, as Service talk. It is for the time before the start.
func (l *load) serve() {
	t := l.n.t
	for _, pod := range l.n.Pods {
		ln, err := pod.Listen(t.Context(), "tcp", ":9000")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				l.wg.Go(func() {
					defer c.Close()
					if _, _, err := talk(c.(*net.TCPConn), 2, 1, l.stop); err != nil {
						l.fail("server: %v", err)
					}
				})
			}
		}()
	}
	l.n.write("talk.yaml", service("talk", "10.96.0.90:9000", "TCP", "  sessionAffinity: None\n"), slice("talk", 1, 9000, "TCP", addrs(l.n.Pods...)...))
}

// hold opens connections that talk until the end.
func (l *load) hold(count int) {
	t := l.n.t
	for range count {
		c, err := l.n.Client.Dial(t.Context(), "tcp", "10.96.0.90:9000")
		if err != nil {
			t.Fatal(err)
		}
		l.wg.Go(func() {
			defer c.Close()
			sent, got, err := talk(c.(*net.TCPConn), 1, 2, l.stop)
			if err != nil {
				l.fail("client: %v", err)
			}
			l.bytes.Add(sent + got)
		})
	}
}

// connect makes new connections all the time.
func (l *load) connect(from *testbed.Host) {
	l.wg.Go(func() {
		for {
			select {
			case <-l.stop:
				return
			default:
			}
			if name, err := who(from, webAddr); err != nil || !strings.HasPrefix(name, "pod-") {
				l.fail("a new connection from %s: %q, %v", from, name, err)
			}
			l.fresh.Add(1)
		}
	})
}

// ask keeps a UDP flow busy; every question is to be answered, by the same pod.
func (l *load) ask(every time.Duration) {
	c := newClient(l.n.t, l.n.Client, dnsAddr)
	first, err := c.insist()
	if err != nil {
		l.n.t.Fatal(err)
	}
	l.wg.Go(func() {
		pause := time.NewTicker(every)
		defer pause.Stop()
		for {
			select {
			case <-l.stop:
				return
			case <-pause.C:
			}
			name, err := c.ask([]byte("?"), 2*time.Second)
			switch {
			case err != nil:
				l.fail("UDP: %v", err)
			case name == "":
				l.lost.Add(1)
			case name != first:
				l.stranger.Add(1)
			}
			l.asked.Add(1)
		}
	})
}

// descriptors returns how many a process has open.
func descriptors(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestUpgradesUnderLoad: nobody notices.
func TestUpgradesUnderLoad(t *testing.T) {
	count, flows := *holding, *asking
	if testing.Short() {
		count, flows = 200, 40
	}
	n := newLine(t, testbed.Config{})
	n.serveWeb()
	n.serveDNS()
	l := &load{n: n, stop: make(chan struct{})}
	l.serve()
	n.start("--udp-timeout", "10s", "--loops", "2")
	var once sync.Once
	stop := func() { once.Do(func() { close(l.stop) }) }
	t.Cleanup(stop)
	l.hold(count)
	for range flows {
		l.ask(100 * time.Millisecond)
	}
	for _, from := range []*testbed.Host{l.n.Client, l.n.Pods[0], l.n.Node} {
		l.connect(from)
	}
	n.eventually("all connections are open", func() bool { return n.metric("sluice_tcp_active_connections") >= float64(count) })
	type size struct {
		fds      int
		resident int64
	}
	var sizes []size
	start := time.Now()
	for range *upgrades {
		n.mustUpgrade()
		resident, err := testbed.ResidentBytes(n.pid())
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, size{descriptors(t, n.pid()), resident})
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		<-ctx.Done() // the load between two upgrades
		cancel()
	}
	took := time.Since(start)
	stop()
	l.wg.Wait()
	t.Logf("%d upgrades in %v; %d connections held with %d MiB through them; %d new ones; %d UDP questions, %d lost",
		*upgrades, took.Round(time.Millisecond), count, l.bytes.Load()>>20, l.fresh.Load(), l.asked.Load(), l.lost.Load())
	first, last := sizes[min(1, len(sizes)-1)], sizes[len(sizes)-1]
	t.Logf("descriptors %d -> %d, resident %d -> %d KiB", first.fds, last.fds, first.resident>>10, last.resident>>10)
	for line := range strings.Lines(n.logged()) {
		if strings.Contains(line, "took over") {
			t.Log(strings.TrimSpace(line))
		}
	}
	if l.failed.Load()+l.lost.Load()+l.stranger.Load() > 0 {
		t.Errorf("%d connections failed, %d UDP answers were lost, %d came from elsewhere", l.failed.Load(), l.lost.Load(), l.stranger.Load())
	}
	if last.fds > first.fds+64 || last.resident > first.resident*3/2+16<<20 {
		t.Errorf("descriptors or memory grew: %+v -> %+v", first, last)
	}
	n.eventually("all connections have ended", func() bool { return n.metric("sluice_tcp_active_connections") == 0 })
}

// TestIdleConnectionsCross: many connections with nothing to do; how long they stand
// still is written down, and whether they work afterwards is tested.
func TestIdleConnectionsCross(t *testing.T) {
	count := *idle
	if testing.Short() {
		count = 500
	}
	n := newLine(t, testbed.Config{Pods: 1})
	ln, err := n.Pods[0].Listen(t.Context(), "tcp", ":8080")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { // an echo that takes no pipe, which splice would
				defer c.Close()
				_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
			}()
		}
	}()
	n.write("web.yaml", service("web", webAddr, "TCP", ""), slice("web", 1, 8080, "TCP", addrs(n.Pods...)...))
	n.start()
	conns := make([]*talker, count)
	for i := range conns {
		conns[i] = n.talker()
	}
	n.eventually("all connections are open", func() bool { return n.metric("sluice_tcp_active_connections") == float64(count) })
	n.eventually("all backends have answered", func() bool { return n.metric("sluice_tcp_dialling_connections") == 0 })
	for range 3 {
		n.mustUpgrade()
	}
	for line := range strings.Lines(n.logged()) {
		if strings.Contains(line, "took over") {
			t.Log(strings.TrimSpace(line))
		}
	}
	for _, c := range conns {
		c.echoes()
	}
	if got := n.metric("sluice_handover_frozen_seconds_count"); got != float64(count) {
		t.Errorf("%v connections were counted as frozen, want %d", got, count)
	}
}
