package queue

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/kernelmodes/nftables"
	"github.com/sluice-lb/sluice/lb"
)

// serve is a program that has a Service with these backends until SIGTERM, and then says how many flows it chose for.
// Where another process still answers it says that its rules are written.
func serve(backends []string) int {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	s := newServer(Mask)
	service := lab.Simple("web", testbed.VIP(false, 1).String(), 80, lb.TCP)
	for _, addr := range backends {
		service.Backends = append(service.Backends,
			lb.Backend{Addr: netip.MustParseAddrPort(addr), Ready: true, Serving: true})
	}
	table, d, err := new(lb.Table).Next(lab.Whole(service).Added, lb.Node{})
	if err == nil {
		s.Balancer.Update(table)
		err = s.Engines[0].Sync(context.Background(), d, lb.Node{})
	}
	if err == nil {
		err = s.Start()
	}
	if errors.Is(err, syscall.EPERM) {
		fmt.Println("written")
		err = s.Await(context.Background())
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ready")
	<-stop
	if err := s.Close(); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(s.Stats().Chosen)
	return 0
}

// process starts the program and waits until it is ready.
func process(t *testing.T, l *lab.Lab, backends []string) (p *testbed.Process, line func() string) {
	t.Helper()
	p, line = launch(t, l, backends)
	if first := line(); first != "ready" {
		t.Fatalf("the process says %q", first)
	}
	return p, line
}

// launch starts the program.
func launch(t *testing.T, l *lab.Lab, backends []string) (p *testbed.Process, line func() string) {
	t.Helper()
	return run(t, l.Node, "serve", backends...)
}

// run starts a program on a host, and returns what reads a line of it.
func run(t *testing.T, h *testbed.Host, program string, args ...string) (p *testbed.Process, line func() string) {
	t.Helper()
	r, w, err := os.Pipe()
	testbed.Check(t, err)
	t.Cleanup(func() { _ = r.Close() })
	c := h.Self(t.Context(), program, args...)
	c.Stdout = w
	p, err = c.Launch()
	testbed.Check(t, err)
	_ = w.Close()
	lines := bufio.NewReader(r)
	line = func() string {
		text, _ := lines.ReadString('\n')
		return strings.TrimSpace(text)
	}
	return p, line
}

// repeated returns how many SYNs a host has sent again (TcpExtTCPSynRetrans).
func repeated(t *testing.T, h *testbed.Host) (n int) {
	t.Helper()
	var b []byte
	h.DoT(t, func() (err error) { b, err = os.ReadFile("/proc/thread-self/net/netstat"); return err })
	lines := strings.SplitN(string(b), "\n", 3) // names, values
	names, values := strings.Fields(lines[0]), strings.Fields(lines[1])
	n, err := strconv.Atoi(values[slices.Index(names, "TCPSynRetrans")])
	testbed.Check(t, err)
	return n
}

// TestCrash: when a process ends under load no SYN is lost. When it is killed open connections go on, new ones are
// served by the kernel's own choice at once, and the next process takes over. No client is refused at any time.
func TestCrash(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 3}, func(int) lab.Engine { return new(nftables.Engine) })
	var backends []string
	for _, pod := range l.Pods {
		at := netip.AddrPortFrom(pod.Addr4, 8080).String()
		testbed.Keep(t)(pod.EchoTCP(at))
		backends = append(backends, at)
	}
	vip := lab.At(testbed.VIP(false, 1), 80).String()
	dial := func(within time.Duration) (*testbed.Talker, error) {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		c, err := l.Client.Dial(ctx, "tcp", vip)
		return &testbed.Talker{T: t, Conn: c}, err
	}
	p, _ := process(t, l, backends)
	open, err := dial(testbed.Patience)
	testbed.Check(t, err)
	defer open.Close()

	var load sync.WaitGroup
	var served atomic.Int64
	stop := make(chan struct{})
	more := func(n int64) {
		t.Helper()
		until := served.Load() + n
		testbed.Eventually(t, "more are served", func() bool { return served.Load() >= until })
	}
	for range 4 {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := dial(testbed.Patience)
				if err != nil {
					t.Errorf("connect under load: %v", err)
					return
				}
				_ = c.Conn.(*net.TCPConn).SetLinger(0)
				_ = c.Close()
				served.Add(1)
			}
		})
	}
	more(100)
	p.Signal(syscall.SIGTERM)
	testbed.Check(t, p.Wait(t.Context()))
	more(100)
	p, _ = process(t, l, backends)
	more(100)
	if n := repeated(t, l.Client); n > 0 {
		t.Errorf("%d SYNs were lost while a process ended and the next one began", n)
	}
	p.Stop(syscall.SIGKILL)
	for range 20 {
		c, err := dial(900 * time.Millisecond) // less than a second SYN takes
		if err != nil {
			t.Fatalf("without a process: %v", err)
		}
		c.Echoes()
		_ = c.Close()
	}
	open.Echoes()
	more(100)
	t.Logf("%d SYNs were lost with the process that was killed", repeated(t, l.Client))
	p, line := process(t, l, backends)
	more(100)
	open.Echoes()
	close(stop)
	load.Wait()
	p.Signal(syscall.SIGTERM)
	var chosen int
	if _, err := fmt.Sscan(line(), &chosen); err != nil || chosen < 100 {
		t.Errorf("the next process chose for %d flows, %v; want 100 at least", chosen, err)
	}
	testbed.Check(t, p.Wait(t.Context()))
}

// TestTakeOver: while one process answers and the rules are already those of the next, each flow gets where the first
// one says, though the next has other endpoints in another order; then the next one answers. No SYN is lost.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 3}, func(int) lab.Engine { return new(nftables.Engine) })
	var backends []string
	for _, pod := range l.Pods {
		testbed.Keep(t)(pod.WhoTCP(":8080"))
		backends = append(backends, netip.AddrPortFrom(pod.Addr4, 8080).String())
	}
	vip := lab.At(testbed.VIP(false, 1), 80)
	who := func() string {
		t.Helper()
		name, _, _ := strings.Cut(lab.Ask(l.Client, lb.TCP, vip), " ")
		return name
	}
	first, said := process(t, l, backends[1:2])
	second, line := launch(t, l, []string{backends[2], backends[0], backends[1]})
	if text := line(); text != "written" {
		t.Fatalf("the second process says %q", text)
	}
	for range 9 {
		if name := who(); name != l.Pods[1].Name {
			t.Fatalf("a flow gets to %q, want %s as the first process says", name, l.Pods[1].Name)
		}
	}
	first.Signal(syscall.SIGTERM)
	if chosen := said(); chosen != "9" {
		t.Errorf("the first process chose for %s flows, want 9", chosen)
	}
	if text := line(); text != "ready" {
		t.Fatalf("the second process says %q", text)
	}
	count := make(map[string]int)
	for range 9 {
		count[who()]++
	}
	for name, n := range count {
		if n != 3 || len(count) != 3 {
			t.Errorf("%s had %d of 9 flows, want 3 each", name, n)
		}
	}
	second.Signal(syscall.SIGTERM)
	if chosen := line(); chosen != "9" {
		t.Errorf("the second process chose for %s flows, want 9", chosen)
	}
	if n := repeated(t, l.Client); n > 0 {
		t.Errorf("%d SYNs were lost", n)
	}
}
