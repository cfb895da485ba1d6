package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestThreeHundredConnections: exact turns, from wherever a client is.
func TestThreeHundredConnections(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	l.ServeWeb()
	l.Start()
	for _, from := range []*testbed.Host{l.Client, l.Node, l.Pods[0]} { // pod-0 is asked by itself, too
		count := map[string]int{}
		for range 300 {
			name, err := from.Who(lab.WebAddr)
			if err != nil {
				t.Fatalf("from %s: %v", from, err)
			}
			count[name]++
		}
		if count["pod-0"] != 100 || count["pod-1"] != 100 || count["pod-2"] != 100 {
			t.Errorf("300 connections from %s were spread as %v, want 100 each", from, count)
		}
	}
}

// pump sends size bytes of a stream and ends, while it returns the hash of what it gets.
func pump(c net.Conn, seed uint64, size int64) (sum []byte, err error) {
	var wg sync.WaitGroup
	var sendErr error
	wg.Go(func() {
		if _, sendErr = io.CopyN(c, testbed.Stream(seed), size); sendErr == nil {
			sendErr = c.(*net.TCPConn).CloseWrite()
		}
	})
	h := sha256.New()
	_, err = io.Copy(h, c)
	wg.Wait()
	return h.Sum(nil), errors.Join(err, sendErr)
}

func sumOf(seed uint64, size int64) []byte {
	h := sha256.New()
	_, _ = io.CopyN(h, testbed.Stream(seed), size)
	return h.Sum(nil)
}

// TestBulkBothWays: 256 MiB each way at once, from host to host through the node.
func TestBulkBothWays(t *testing.T) {
	t.Parallel()
	size := int64(256 << 20)
	if testing.Short() {
		size = 16 << 20
	}
	l := lab.New(t, testbed.Config{Pods: 1})
	ln, err := l.Pods[0].Listen(t.Context(), "tcp", ":8080")
	testbed.Check(t, err)
	defer ln.Close()
	l.PublishWeb()
	l.Start()
	type result struct {
		sum []byte
		err error
	}
	server := make(chan result, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			server <- result{nil, err}
			return
		}
		defer c.Close()
		sum, err := pump(c, 2, size)
		server <- result{sum, err}
	}()
	sum, err := pump(l.Hold().Conn, 1, size)
	if err != nil || !bytes.Equal(sum, sumOf(2, size)) {
		t.Errorf("the client did not get what the server sent: %v", err)
	}
	if got := <-server; got.err != nil || !bytes.Equal(got.sum, sumOf(1, size)) {
		t.Errorf("the server did not get what the client sent: %v", got.err)
	}
}

// TestStalledReader: a client pushes up to 1 GiB at a server that reads nothing
// for 3 s, long after all buffers between them are full; the memory of the program does not grow.
func TestStalledReader(t *testing.T) {
	t.Parallel()
	stall := 3 * time.Second
	if testing.Short() {
		stall = time.Second
	}
	l := lab.New(t, testbed.Config{Pods: 1})
	ln, err := l.Pods[0].Listen(t.Context(), "tcp", ":8080")
	testbed.Check(t, err)
	defer ln.Close()
	l.PublishWeb()
	l.Start()
	open := func() (client, server net.Conn) {
		client, err := l.Client.Dial(t.Context(), "tcp", lab.WebAddr)
		testbed.Check(t, err)
		if server, err = ln.Accept(); err != nil {
			t.Fatal(err)
		}
		return client, server
	}
	// Once through first, so that what any connection costs is there already.
	c, s := open()
	go func(c net.Conn) { _, _ = io.CopyN(c, testbed.Stream(1), 32<<20); c.Close() }(c)
	if n, err := io.Copy(io.Discard, s); n != 32<<20 || err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	s.Close()

	c, s = open()
	defer c.Close()
	defer s.Close()
	before, err := testbed.ResidentBytes(l.Process.Pid())
	testbed.Check(t, err)
	testbed.Check(t, c.SetDeadline(time.Now().Add(stall)))
	sent, err := io.CopyN(c, testbed.Stream(2), 1<<30)
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatalf("the client could send %d bytes to a server that reads nothing: %v", sent, err)
	}
	after, err := testbed.ResidentBytes(l.Process.Pid())
	testbed.Check(t, err)
	t.Logf("%d bytes sent; resident memory %d -> %d KiB", sent, before>>10, after>>10)
	if !testing.Short() && after-before >= 1<<20 { // short is for the race detector, which takes memory of its own
		t.Errorf("memory grew by %d KiB, want less than 1 MiB", (after-before)>>10)
	}
	c.Close()
	if n, err := io.Copy(io.Discard, s); n != sent || err != nil {
		t.Errorf("the server got %d of %d bytes, %v", n, sent, err)
	}
}

// TestDeadEndpoint: one endpoint of three drops all packets, and later refuses.
func TestDeadEndpoint(t *testing.T) {
	l := lab.New(t, testbed.Config{})
	servers := l.ServeWeb()
	l.Start("--default-policy=outlier-ejection=false") // else it has five turns
	testbed.Check(t, l.Pods[1].Blackhole(true))
	const n = 30
	var longest time.Duration
	for range n {
		start := time.Now()
		if name, err := l.Client.Who(lab.WebAddr); err != nil || name == "pod-1" {
			t.Fatalf("answer = %q, %v", name, err)
		}
		longest = max(longest, time.Since(start))
	}
	timeouts := l.Metric(`sluice_dials_total{protocol="TCP",result="timeout"}`)
	t.Logf("%v of %d connections met the dead endpoint; the longest took %v", timeouts, n, longest)
	if timeouts != n/3 {
		t.Errorf("%v dials timed out, want %d: one for each turn of the dead endpoint", timeouts, n/3)
	}
	if longest >= 700*time.Millisecond { // 250 ms is one dead pick, 250 + 500 would be two
		t.Errorf("a connection took %v, more than one dead pick explains", longest)
	}
	testbed.Check(t, l.Pods[1].Blackhole(false))
	testbed.Check(t, servers[1].Close())
	for range n {
		if name, err := l.Client.Who(lab.WebAddr); err != nil || name == "pod-1" {
			t.Fatalf("answer with a refusing endpoint = %q, %v", name, err)
		}
	}
	if got := l.Metric(`sluice_dials_total{protocol="TCP",result="refused"}`); got != n/3 {
		t.Errorf("%v dials refused, want %d", got, n/3)
	}
}

// TestNoEndpoints: a client is refused at once, not left waiting, wherever it is.
func TestNoEndpoints(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	l.Write("web.yaml", testbed.ServiceManifest("web", lab.WebAddr, "TCP", ""))
	l.Write("dns.yaml", testbed.ServiceManifest("dns", lab.DNSAddr, "UDP", ""))
	l.Start()
	for _, from := range []*testbed.Host{l.Client, l.Node, l.Pods[0]} {
		if _, err := from.Who(lab.WebAddr); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("TCP from %s = %v, want refused", from, err)
		}
		if _, err := from.TryAsk("udp", lab.DNSAddr, testbed.Patience); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("UDP from %s = %v, want refused", from, err)
		}
	}
}

// TestChurn: 1,000 endpoints come and go while clients connect; no connection fails.
func TestChurn(t *testing.T) {
	testbed.Race(t)
	testbed.Timed(t)
	rounds, ports := 40, 334
	if testing.Short() {
		rounds, ports = 8, 50
	}
	l := lab.New(t, testbed.Config{})
	for _, pod := range l.Pods {
		for p := range ports {
			testbed.Keep(t)(pod.WhoTCP(fmt.Sprintf("%s:%d", pod.Addr4, 10000+p)))
		}
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	all := testbed.Addrs(l.Pods...)
	publish := func(keepOne func() bool) (n int) {
		docs := []string{testbed.ServiceManifest("web", lab.WebAddr, "TCP", "")}
		for p := range ports {
			var some []string
			for _, a := range all {
				if p == 0 || keepOne() { // port 0's are always there
					some = append(some, a)
				}
			}
			n += len(some)
			docs = append(docs, testbed.SliceManifest("web", p, 10000+p, "TCP", some...))
		}
		l.Write("web.yaml", docs...)
		return n
	}
	publish(func() bool { return true })
	l.Start()
	resident := func() int64 {
		n, err := testbed.ResidentBytes(l.Process.Pid())
		testbed.Check(t, err)
		return n
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var mu sync.Mutex
	connections := 0
	for _, from := range []*testbed.Host{l.Client, l.Pods[0]} {
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := from.Who(lab.WebAddr); err != nil {
					t.Errorf("a connection from %s failed: %v", from, err)
				}
				mu.Lock()
				connections++
				mu.Unlock()
			}
		})
	}
	var first int64
	for i := range rounds {
		n := publish(func() bool { return r.IntN(2) == 0 })
		l.Eventually("the change is in force", func() bool { return int(l.Metric("sluice_endpoints")) == n })
		if i == rounds/4 {
			first = resident()
		}
	}
	cancel()
	wg.Wait()
	last := resident()
	t.Logf("%d connections, %d changes of %d endpoints; resident memory %d -> %d KiB", connections, rounds, 3*ports, first>>10, last>>10)
	if connections < rounds {
		t.Errorf("only %d connections were made: too few to show anything", connections)
	}
	if last > first+first/4+8<<20 {
		t.Errorf("resident memory grew from %d to %d KiB", first>>10, last>>10)
	}
}

// TestFewDescriptors: 500 clients of a program with 64 descriptors. Those that fit
// are served, the others wait, and all are served in the end.
func TestFewDescriptors(t *testing.T) {
	testbed.Race(t)
	testbed.Timed(t)
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1})
	l.ServeEcho()
	l.Limit = 64
	l.Start("--loops", "2")
	const clients = 500
	conns := make([]net.Conn, clients)
	for i := range conns {
		c, err := l.Client.Dial(t.Context(), "tcp", lab.WebAddr)
		if err != nil {
			t.Fatalf("client %d: %v", i, err)
		}
		defer c.Close()
		conns[i] = c
	}
	l.Eventually("accepting is paused", func() bool {
		return l.Metric(`sluice_accept_pauses_total{protocol="TCP",resource="file_descriptors"}`) > 0
	})

	// With all of them idle the program must not spin.
	start, cpu := time.Now(), l.Metric("process_cpu_seconds_total")
	time.Sleep(time.Second) // the time over which it is measured
	if used, wall := l.Metric("process_cpu_seconds_total")-cpu, time.Since(start).Seconds(); used > wall/2 && !testing.Short() {
		t.Errorf("%.2f s of CPU in %.2f s with nothing to do", used, wall)
	}
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(3 * testbed.Patience))
			want := fmt.Sprintf("client %d", i)
			if _, err := io.WriteString(c, want); err != nil {
				t.Errorf("client %d: %v", i, err)
			}
			if err := c.(*net.TCPConn).CloseWrite(); err != nil {
				t.Errorf("client %d: %v", i, err)
			}
			if got, err := io.ReadAll(c); err != nil || string(got) != want {
				t.Errorf("client %d got %q, %v", i, got, err)
			}
		})
	}
	wg.Wait()
	l.Eventually("all connections have ended", func() bool {
		return l.Metric(`sluice_active_connections{protocol="TCP"}`) == 0
	})
	if got := l.Metric(`sluice_connections_total{protocol="TCP",result="established"}`); got != clients {
		t.Errorf("%v connections accepted, want %d", got, clients)
	}
}

// TestSharesOfFewDescriptors: with 128 descriptors, too, a Service that holds all that it can get leaves some for
// another.
func TestSharesOfFewDescriptors(t *testing.T) {
	t.Parallel()
	const other = "10.96.0.81:80"
	l := lab.New(t, testbed.Config{Pods: 1})
	l.ServeEcho()
	testbed.Keep(t)(l.Pods[0].WhoTCP(":8081"))
	l.Write("other.yaml", testbed.ServiceManifest("other", other, "TCP", ""),
		testbed.SliceManifest("other", 1, 8081, "TCP", l.Pods[0].Addr4.String()))
	l.Limit = 128
	l.Start("--loops", "2")
	for i := range 200 {
		if c, err := l.Client.Dial(t.Context(), "tcp", lab.WebAddr); err == nil {
			defer c.Close()
		} else if i == 0 {
			t.Fatal(err)
		}
	}
	l.Eventually("the Service has its share", func() bool {
		return l.Metric(`sluice_refused_connections_total{protocol="TCP",share="service_file_descriptors"}`) > 0
	})
	for i := range 20 {
		if who, err := l.Client.Who(other); err != nil || who != l.Pods[0].Name {
			t.Fatalf("question %d to another Service: answer %q, %v", i, who, err)
		}
	}
}

// TestProxyPortIsNotOpen: what was not steered is refused.
func TestProxyPortIsNotOpen(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	l.ServeWeb()
	l.Start("--proxy-port-range", "31000")
	node := netip.AddrPortFrom(l.Node.Addr4, 31000).String()
	for _, from := range []*testbed.Host{l.Client, l.Pods[0], l.Node} {
		if _, err := from.Who(node); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("the proxy port asked from %s = %v, want refused", from, err)
		}
	}
	if name, err := l.Client.Who(lab.WebAddr); err != nil || name == "" {
		t.Errorf("the Service itself = %q, %v", name, err)
	}
}
