package handover

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/ipvs"
)

// The whole of it is -upgrades 100 -share 1; the default is for every day.
var (
	upgrades = flag.Int("upgrades", 0, "number of upgrades in a row under load; 0 is 10, or 3 in short mode")
	share    = flag.Float64("share", 0, "part of the connections and flows that there are during upgrades; 0 is two fifths, or a fifth in short mode, and half of that on one processor")
	pace     = flag.Float64("pace", 0, "how fast they are; 0 is 1, or 0.5 on one processor")
	idle     = flag.Int("idle", 5000, "idle connections that cross")
)

// amount is how many upgrades there are, and how much load.
func amount() (times int, part, speed float64) {
	times, part, speed = 10, 0.4, 1
	if testing.Short() {
		times, part = 3, 0.2
	}
	if runtime.NumCPU() == 1 {
		part, speed = part/2, 0.5
	}
	return cmp.Or(*upgrades, times), cmp.Or(*share, part), cmp.Or(*pace, speed)
}

// burden is what there is on one data path: connections held, UDP flows, and how many
// new connections per second each of six clients makes.
type burden struct{ held, flows, often int }

// burdens returns what is on the path that crosses, and on each of the others.
func burdens(part, speed float64) (userspace, offloaded burden) {
	of := func(whole int, part float64) int { return max(1, int(float64(whole)*part)) }
	return burden{of(1000, part), of(200, part), of(100, part*speed)}, burden{of(50, part), of(10, part), of(10, part*speed)}
}

// flowTimeout is --udp-timeout.
const flowTimeout = 10 * time.Second

// talk sends a stream in pieces with pauses until stop, ends it, and checks that what
// comes is another stream, to its end. Each piece, and each pause, is as long as chance will have it. A
// stream that is half ends early, and the other direction goes on.
func talk(c *net.TCPConn, sends, gets uint64, half bool, pause time.Duration, stop <-chan struct{}) (sent, got int64, err error) {
	r := rand.New(rand.NewPCG(sends, gets))
	early := time.Duration(-1)
	if half {
		early = time.Duration(r.IntN(int(10 * time.Second)))
	}
	var wg sync.WaitGroup
	var sendErr error
	wg.Go(func() {
		from, start, buf := testbed.Stream(sends), time.Now(), make([]byte, 256<<10)
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
			case <-time.After(time.Duration(r.Int64N(int64(pause)))):
				running = early < 0 || time.Since(start) < early
			}
		}
		sendErr = c.CloseWrite()
	})
	want, buf, expect := testbed.Stream(gets), make([]byte, 16<<10), make([]byte, 16<<10)
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
	*lab.Lab
	stop  chan struct{}
	once  sync.Once
	wg    sync.WaitGroup
	paths []agent.Path // that this host has; each has a Service of each kind
	speed float64      // of streams and flows; 1 is a piece every 0.5 s, and a datagram every 20 ms
	held  uint64       // connections so far

	failed       atomic.Int64 // connections that were refused, reset, or got wrong bytes
	bytes, fresh atomic.Int64
	flows        []*asker
}

func emptyLoad(l *lab.Lab) *load { return &load{Lab: l, stop: make(chan struct{}), speed: 1} }

// slowly returns how long something takes that takes d at speed 1.
func (g *load) slowly(d time.Duration) time.Duration { return time.Duration(float64(d) / g.speed) }

// newLoad has every pod serve every kind of Service on every path. It is for the time
// before the start.
func newLoad(l *lab.Lab) *load {
	g := emptyLoad(l)
	g.paths = []agent.Path{agent.Userspace, agent.Queue, agent.NFTables, agent.IPTables}
	l.T.Cleanup(g.end)
	switch there := ipvs.Present(l.T.Context()) == nil; {
	case there && testing.Short(): // in a VM, where the others have been on another kernel
		g.paths = []agent.Path{agent.Userspace, agent.IPVS}
	case there:
		g.paths = append(g.paths, agent.IPVS)
	}
	for _, pod := range l.Pods {
		g.serveTalk(pod)
		g.serveEcho(pod)
		testbed.Keep(l.T)(pod.WhoTCP(":8080"))
	}
	for i, path := range g.paths {
		for _, m := range []lab.Movable{
			{Name: "web", Addr: g.addr(i, 80), Protocol: "TCP", Port: 8080},
			{Name: "talk", Addr: g.addr(i, 9000), Protocol: "TCP", Port: 9000},
			{Name: "echo", Addr: g.addr(i, 53), Protocol: "UDP", Port: 5300},
		} {
			m.Name, m.Path = fmt.Sprintf("%s-%s", m.Name, path), path.String()
			l.Write(m.Name+".yaml", m.Manifest(),
				testbed.SliceManifest(m.Name, 1, m.Port, m.Protocol, testbed.Addrs(l.Pods...)...))
		}
	}
	return g
}

// addr is where a Service on a path is.
func (g *load) addr(path, port int) string { return fmt.Sprintf("10.96.1.%d:%d", path+1, port) }

func (g *load) end() {
	g.once.Do(func() { close(g.stop) })
	g.wg.Wait()
}

func (g *load) fail(format string, args ...any) {
	if g.failed.Add(1) <= 10 {
		g.T.Errorf(format, args...)
	}
}

// half says which connections end one of their directions early: a tenth at the client,
// a tenth at the server, never both.
func half(number uint64) (client, server bool) { return number%10 == 0, number%10 == 5 }

// serveTalk has a pod talk: the client says first which connection it is, so that no two
// have the same bytes.
func (g *load) serveTalk(pod *testbed.Host) {
	ln, err := pod.Listen(g.T.Context(), "tcp", ":9000")
	if err != nil {
		g.T.Fatal(err)
	}
	g.T.Cleanup(func() { _ = ln.Close() })
	go func() { // until ln is closed
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			g.wg.Go(func() {
				defer c.Close()
				var number [8]byte
				_, err := io.ReadFull(c, number[:])
				n := binary.LittleEndian.Uint64(number[:])
				_, early := half(n)
				if err == nil {
					_, _, err = talk(c.(*net.TCPConn), 2*n+1, 2*n, early, g.slowly(time.Second), g.stop)
				}
				if err != nil {
					g.fail("server of connection %d: %v", n, err)
				}
			})
		}
	}()
}

// serveEcho has a pod answer datagrams with its name after what was asked.
func (g *load) serveEcho(pod *testbed.Host) {
	pc, err := pod.ListenPacket(g.T.Context(), "udp", netip.AddrPortFrom(pod.Addr4, 5300).String())
	if err != nil {
		g.T.Fatal(err)
	}
	roomFor(pc.(*net.UDPConn))
	g.T.Cleanup(func() { _ = pc.Close() })
	go func() { // until pc is closed
		buf := make([]byte, 100)
		for {
			n, from, err := pc.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = pc.WriteTo(append(buf[:n:n], pod.Name...), from)
			}
		}
	}()
}

// serveDNS has the Service of DNSAddr answered so by all pods.
func (g *load) serveDNS() {
	for _, pod := range g.Pods {
		g.serveEcho(pod)
	}
	g.Publish("dns", lab.DNSAddr, "UDP", "", 5300, g.Pods...)
}

// roomFor gives a socket room for what comes at once after it stood still, if we may.
func roomFor(c syscall.Conn) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20) })
	}
}

// hold opens connections that talk until the end.
func (g *load) hold(addr string, count int) {
	for range count {
		c, err := g.Client.Dial(g.T.Context(), "tcp", addr)
		if err != nil {
			g.T.Fatal(err)
		}
		g.held++
		n := g.held
		g.wg.Go(func() {
			defer c.Close()
			early, _ := half(n)
			_, err := c.Write(binary.LittleEndian.AppendUint64(nil, n))
			if err == nil {
				var sent, got int64
				sent, got, err = talk(c.(*net.TCPConn), 2*n, 2*n+1, early, g.slowly(time.Second), g.stop)
				g.bytes.Add(sent + got)
			}
			if err != nil {
				g.fail("client of connection %d to %s: %v", n, addr, err)
			}
		})
	}
}

// connect makes so many new connections per second, or as many as it can.
func (g *load) connect(from *testbed.Host, addr string, rate int) {
	g.wg.Go(func() {
		for due := time.Now(); ; due = due.Add(time.Second / time.Duration(rate)) {
			select {
			case <-g.stop:
				return
			case <-time.After(time.Until(due)):
			}
			if name, err := from.Who(addr); err != nil || !strings.HasPrefix(name, "pod-") {
				g.fail("a new connection from %s to %s: %q, %v", from, addr, name, err)
			}
			g.fresh.Add(1)
		}
	})
}

// asker is a UDP flow of numbered datagrams.
type asker struct {
	net.Conn
	sent, got, strange atomic.Int64
	moved              atomic.Int64 // of strange, those from another pod than before
	silent             atomic.Int64 // longest time between two datagrams, ns
}

// ask begins a flow, once it has an answer.
func (g *load) ask(addr string) {
	conn, err := g.Client.Dial(g.T.Context(), "udp", addr)
	if err != nil {
		g.T.Fatal(err)
	}
	a := &asker{Conn: conn}
	var first string
	for begun := time.Now(); first == ""; {
		if first, err = (testbed.UDPClient{Conn: conn}).Ask(make([]byte, 8), time.Second); err != nil ||
			first == "" && time.Since(begun) > testbed.Patience {
			g.T.Fatalf("UDP %s: %q, %v", addr, first, err)
		}
	}
	_ = conn.SetDeadline(time.Time{})
	g.flows = append(g.flows, a)
	g.wg.Go(func() {
		every := g.slowly(20 * time.Millisecond)
		tick := time.NewTicker(every)
		defer tick.Stop()
		start := time.Now()
		for last := start; ; {
			select {
			case <-g.stop:
				return
			case <-tick.C:
			}
			now := time.Now()
			a.silent.Store(max(a.silent.Load(), int64(now.Sub(last))))
			last = now
			// Ticks that a busy machine has swallowed are made up for.
			for due := int64(time.Since(start) / every); a.sent.Load() < due; {
				msg := binary.LittleEndian.AppendUint64(nil, uint64(a.sent.Add(1)))
				if _, err := conn.Write(msg); err != nil {
					g.fail("UDP %s: %v", addr, err)
				}
			}
		}
	})
	var readers sync.WaitGroup
	readers.Go(func() { a.count(first[8:]) })
	g.T.Cleanup(func() {
		_ = conn.Close()
		readers.Wait()
	})
}

// count counts every reply once, until the flow is closed.
func (a *asker) count(pod string) {
	seen := make(map[uint64]bool)
	buf := make([]byte, 100)
	for {
		n, err := a.Read(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < 8 {
			a.strange.Add(1) // refused
			continue
		}
		number := binary.LittleEndian.Uint64(buf)
		if number == 0 {
			continue // a late answer to what the flow began with
		}
		if seen[number] || string(buf[8:n]) != pod {
			a.strange.Add(1)
			if string(buf[8:n]) != pod {
				a.moved.Add(1)
			}
			continue
		}
		seen[number] = true
		a.got.Add(1)
	}
}

// asked returns what all flows have sent, how much of that was not answered, and how many
// answers came twice, from another pod than before, or were errors. Of what was sent last
// the answers may be on their way still.
func (g *load) asked() (sent, lost, strange int64) {
	for _, a := range g.flows {
		lost -= a.got.Load() // before sent, so that none is counted that was not sent yet
		strange += a.strange.Load()
	}
	for _, a := range g.flows {
		sent += a.sent.Load()
	}
	return sent, lost + sent, strange
}

// kept wants every flow that the program has let go of to be counted by its reason, so that
// none was lost between two processes, and tells of those whose pod has changed why that
// may be. On a machine that carries the load there are none. flows is how many crossed.
func (g *load) kept(flows int) {
	g.T.Helper()
	reasons := map[string]string{
		"expired": `sluice_ended_connections_total{protocol="UDP",reason="expired"}`,
		"evicted": `sluice_ended_connections_total{protocol="UDP",reason="limit"}`,
		"moved":   `sluice_ended_connections_total{protocol="UDP",reason="moved"}`,
	}
	again, ended := g.Metric(`sluice_connections_total{protocol="UDP",result="established"}`)-float64(flows), 0.0
	var why []string
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		n := g.Metric(reasons[reason])
		ended += n
		why = append(why, fmt.Sprintf("%v %s", n, reason))
	}
	moved, silent := 0, 0
	for _, a := range g.flows {
		if a.moved.Load() == 0 {
			continue
		}
		if moved++; time.Duration(a.silent.Load()) >= flowTimeout {
			silent++
		}
	}
	if again != 0 || moved > 0 {
		g.T.Logf("%v flows were made again and %d have another pod, of which the clients of %d said nothing for %v; the program counts %s",
			again, moved, silent, flowTimeout, strings.Join(why, ", "))
	}
	if again < 0 || again > ended {
		g.T.Errorf("%v flows were made again, but only %v had ended: flows were lost between two processes", again, ended)
	}
}

// begin holds connections, asks in so many flows, and connects anew from a client and from the node.
func (g *load) begin(held, flows int) {
	g.hold(g.addr(0, 9000), held)
	for range flows {
		g.ask(g.addr(0, 53))
	}
	g.connect(g.Client, g.addr(0, 80), 50)
	g.connect(g.Node, g.addr(0, 80), 50)
}

// endWell ends the load that begin started, and fails the test if anything was lost.
func (g *load) endWell(flows int) {
	g.end()
	g.kept(flows)
	g.nothingLost()
}

func (g *load) nothingLost() {
	sent, lost, strange := g.settled()
	g.T.Logf("%d connections held, %d new ones, %d UDP questions, %d lost", g.held, g.fresh.Load(), sent, lost)
	if g.failed.Load()+lost+strange > 0 {
		g.T.Errorf("%d connections failed, %d UDP answers were lost, %d were not what they should be",
			g.failed.Load(), lost, strange)
	}
}

// settled is asked after end: it waits for answers as long as any come.
func (g *load) settled() (sent, lost, strange int64) {
	sent, lost, strange = g.asked()
	for before := int64(-1); lost > 0 && lost != before; sent, lost, strange = g.asked() {
		before = lost
		wait(2 * time.Second) // nothing tells that no more come
	}
	return sent, lost, strange
}

// window is a part of a run.
type window struct{ sent, lost int64 }

// during returns what was asked, and not answered, while do ran.
func (g *load) during(do func()) window {
	sent, lost, _ := g.asked()
	do()
	sent2, lost2, _ := g.asked()
	return window{sent2 - sent, max(0, lost2-lost)}
}

// usage is what one process after the other takes.
type usage struct{ fds, resident []int64 }

func (u *usage) note(t *testing.T, pid int) {
	t.Helper()
	resident, err := testbed.ResidentBytes(pid)
	testbed.Check(t, err)
	u.fds = append(u.fds, int64(descriptors(t, pid)))
	u.resident = append(u.resident, resident)
}

// grew compares the last processes with those around the tenth, or the first if there
// are few, by medians.
func (u *usage) grew(t *testing.T) {
	t.Helper()
	n := len(u.fds)
	from := min(9, n/2)
	size := max(1, min(5, n-from))
	for what, c := range map[string]struct {
		all   []int64
		slack int64
	}{"descriptors": {u.fds, 32}, "bytes resident": {u.resident, 6 << 20}} {
		first, last := median(c.all[from:from+size]), median(c.all[n-size:])
		t.Logf("%s: %d around upgrade %d, %d around upgrade %d", what, first, from+1, last, n)
		if last > first+c.slack {
			t.Errorf("%s grew from %d to %d", what, first, last)
		}
	}
}

func median[T int64 | time.Duration](all []T) T {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

var stoodStill = regexp.MustCompile(`"freeze_p99": "([^"]+)"`)

// freezes reports how long connections were paused.
func (n *line) freezes() {
	n.T.Helper()
	var all []time.Duration
	under := 0
	for _, m := range stoodStill.FindAllStringSubmatch(n.logged(), -1) {
		d, err := time.ParseDuration(m[1])
		if err != nil {
			n.T.Fatal(err)
		}
		if all = append(all, d); d < 50*time.Millisecond {
			under++
		}
	}
	n.T.Logf("99 of 100 connections were paused for at most %v in the median upgrade, %v in the worst; under 50 ms in %d of %d",
		median(all), slices.Max(all), under, len(all))
}

// TestUpgradesUnderLoad: nobody notices, whichever data path they are on.
func TestUpgradesUnderLoad(t *testing.T) {
	testbed.Race(t)
	testbed.Timed(t)
	testbed.VM(t)
	times, part, speed := amount()
	here, elsewhere := burdens(part, speed)
	n := newLine(t, testbed.Config{})
	l := newLoad(n.Lab)
	l.speed = speed
	hosts := append(slices.Clone(n.Pods), n.Client, n.Node)
	before, err := lab.Dropped(hosts...)
	testbed.Check(t, err)
	n.start("--udp-timeout", flowTimeout.String(), "--loops", "2")
	for i := range l.paths {
		b := here
		if i > 0 { // these do not cross, and must not notice
			b = elsewhere
		}
		l.hold(l.addr(i, 9000), b.held)
		for range b.flows {
			l.ask(l.addr(i, 53))
		}
		for _, from := range []*testbed.Host{n.Client, n.Pods[0], n.Node, n.Client, n.Pods[0], n.Node} {
			l.connect(from, l.addr(i, 80), b.often)
		}
	}
	n.Eventually("all connections are open", func() bool {
		return n.Metric(`sluice_active_connections{protocol="TCP"}`) >= float64(here.held)
	})

	fresh, start := l.fresh.Load(), time.Now()
	var u usage
	var upgrading, worst window // worst of those without an upgrade
	for range times {
		begun := time.Now()
		w := l.during(n.mustUpgrade)
		upgrading = window{upgrading.sent + w.sent, upgrading.lost + w.lost}
		u.note(t, n.pid())
		// What this machine loses anyway is what it loses in as long a time without.
		w = l.during(func() { wait(max(200*time.Millisecond, time.Since(begun))) })
		if w.lost*max(worst.sent, 1) >= worst.lost*w.sent {
			worst = w
		}
	}
	took := time.Since(start)
	fresh = l.fresh.Load() - fresh
	l.end()
	l.kept(here.flows)
	sent, lost, strange := l.settled()
	after, err := lab.Dropped(hosts...)
	testbed.Check(t, err)
	t.Logf("%d upgrades in %v on %v; %d connections held, %d MiB through them; %.0f new ones per second; %d of %d UDP questions lost, %d of %d while upgrading, %d of %d in the worst time without; the kernel has dropped %d datagrams",
		times, took.Round(time.Millisecond), l.paths, l.held, l.bytes.Load()>>20, float64(fresh)/took.Seconds(),
		lost, sent, upgrading.lost, upgrading.sent, worst.lost, worst.sent, after-before)
	n.freezes()
	u.grew(t)
	if failed := l.failed.Load(); failed > 0 {
		t.Errorf("%d connections failed", failed)
	}
	switch allowed := worst.lost * upgrading.sent / max(worst.sent, 1); {
	case lost > after-before:
		t.Errorf("%d of %d UDP answers were lost, of which the kernel has dropped %d at most", lost, sent, after-before)
	case lost == 0 && strange > 0:
		t.Errorf("%d UDP answers came from elsewhere, twice, or were errors", strange)
	case lost > 0 && upgrading.lost > allowed:
		t.Errorf("%d of %d UDP answers were lost while upgrading, %d of %d in the worst time without", upgrading.lost, upgrading.sent, worst.lost, worst.sent)
	}
	n.Eventually("all connections have ended", func() bool {
		return n.Metric(`sluice_active_connections{protocol="TCP"}`) == 0
	})
}

// wait lets the load go on for a while.
func wait(d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	<-ctx.Done()
}

// TestIdleConnectionsCross: many connections with nothing to do; how long they stand
// still is written down, and whether they work afterwards is tested.
func TestIdleConnectionsCross(t *testing.T) {
	testbed.Race(t)
	testbed.Timed(t)
	count := *idle
	if testing.Short() {
		count = 500
	}
	n := newLine(t, testbed.Config{Pods: 1})
	ln, err := n.Pods[0].Listen(t.Context(), "tcp", ":8080")
	testbed.Check(t, err)
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
	n.PublishWeb()
	n.start()
	conns := make([]*testbed.Talker, count)
	for i := range conns {
		conns[i] = n.Hold()
	}
	n.Eventually("all connections are open", func() bool {
		return n.Metric(`sluice_active_connections{protocol="TCP"}`) == float64(count)
	})
	n.Eventually("all backends have answered", func() bool {
		return n.Metric(`sluice_dialling_connections{protocol="TCP"}`) == 0
	})
	for range 3 {
		n.mustUpgrade()
	}
	for line := range strings.Lines(n.logged()) {
		if strings.Contains(line, "took over") {
			t.Log(strings.TrimSpace(line))
		}
	}
	n.freezes()
	for _, c := range conns {
		c.Echoes()
	}
	if got := n.Metric("sluice_handover_frozen_seconds_count"); got != float64(count) {
		t.Errorf("%v connections were counted as frozen, want %d", got, count)
	}
}
