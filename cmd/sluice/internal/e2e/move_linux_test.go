package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// moving is a lab under load whose Services move.
type moving struct {
	*lab.Lab
	services []*lab.Movable
	stop     chan struct{}
	load     sync.WaitGroup
	first    sync.WaitGroup // every UDP client's first exchange
	stall    stall

	connections, exchanges, blocks atomic.Int64
	worst                          atomic.Int64 // ns, of UDP exchanges
	retries                        atomic.Int64
}

// TestMove moves five Services at random between the data paths, under load: no
// connection is refused, reset or corrupted, and no UDP exchange goes unanswered for
// more than 100 ms.
func TestMove(t *testing.T) {
	testbed.Race(t)
	testbed.Timed(t)
	moves := 100
	if testing.Short() {
		moves = 30
	}
	testMoves(t, moves, []string{"userspace", "queue", "nftables", "iptables"}, "")
}

// TestMoveIPVS moves them from ipvs to each of the others and back, in a VM.
func TestMoveIPVS(t *testing.T) {
	testbed.VM(t)
	lab.NeedMode(t, "ipvs")
	moves := 100
	if testing.Short() {
		moves = 16
	}
	testMoves(t, moves, []string{"userspace", "queue", "nftables", "iptables", "ipvs"}, "ipvs")
}

// testMoves moves Services among paths, if one is always, to it or from it.
func testMoves(t *testing.T, moves int, paths []string, always string) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	m := &moving{Lab: lab.New(t, testbed.Config{}), stop: make(chan struct{})}
	m.services = []*lab.Movable{
		{Name: "web", Addr: "10.96.0.80:80", Protocol: "TCP", Port: 8080},
		{Name: "both", Addr: "10.96.0.81:80", Protocol: "TCP", Port: 8080, NodePort: 30081},
		{Name: "stream", Addr: "10.96.0.82:7", Protocol: "TCP", Port: 7000, NodePort: 30082, More: "  sessionAffinity: ClientIP\n"},
		{Name: "dns", Addr: "10.96.0.10:53", Protocol: "UDP", Port: 5353},
		{Name: "udp", Addr: "10.96.0.11:53", Protocol: "UDP", Port: 5353, NodePort: 30011},
	}
	for _, pod := range m.Pods {
		testbed.Keep(t)(pod.WhoTCP(":8080"))
		testbed.Keep(t)(pod.EchoTCP(":7000"))
		testbed.Keep(t)(pod.EchoUDP(pod.Addr4.String() + ":5353"))
	}
	for _, s := range m.services {
		m.put(s)
	}
	m.Write("node.yaml", nodeManifest)
	m.Start("--hostname-override", "node", "--iptables-min-sync-period", "0s", // one move after the other
		"--udp-timeout", "250ms") // flows of node ports, which are held on every path, end soon
	m.begin()
	end := sync.OnceFunc(func() {
		close(m.stop)
		m.load.Wait()
	})
	defer end() // before the lab is taken down, also if the test ends here
	for n := range moves {
		s := m.services[r.IntN(len(m.services))]
		was := s.Path
		for s.Path == was || was == "" && s.Path == "userspace" || always != "" && was != always && s.Path != always {
			s.Path = paths[r.IntN(len(paths))]
		}
		m.put(s)
		m.Eventually(fmt.Sprintf("move %d, of %s from %q to %s", n, s.Name, was, s.Path), func() bool {
			return strings.Count(m.Log.String(), "moving a Service to another data path") > n
		})
		time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond) // load between moves, and less of it
		if t.Failed() {
			break
		}
		if n%25 == 24 {
			t.Logf("%d moves are done", n+1)
		}
	}
	end()
	// The flows of UDP that went on where they were have ended, but for that by loopback until it expires.
	m.Eventually("no UDP client is left in user space", func() bool {
		return m.Metric(`sluice_active_connections{protocol="UDP"}`) == 0
	})
	for _, s := range m.services {
		m.put(s)
	}
	want := map[string]float64{}
	for _, s := range m.services {
		want[s.Path]++
	}
	for _, path := range paths {
		series := fmt.Sprintf("sluice_service_data_path{path=%q}", path)
		m.Eventually(fmt.Sprintf("%s is %v", series, want[path]), func() bool { return m.Metric(series) == want[path] })
	}
	t.Logf("%d moves, %d connections, %d exchanges (%d datagrams sent again, longest wait %v), %d blocks in streams; the longest wait for a CPU was %v",
		moves, m.connections.Load(), m.exchanges.Load(), m.retries.Load(), time.Duration(m.worst.Load()), m.blocks.Load(), m.stall.longest())
	if m.connections.Load() == 0 || m.exchanges.Load() == 0 || m.blocks.Load() == 0 {
		t.Error("there was no load")
	}
}

// put writes the manifest of a Service, with its endpoints.
func (m *moving) put(s *lab.Movable) {
	m.Write(s.Name+".yaml", s.Manifest(),
		testbed.SliceManifest(s.Name, 1, s.Port, s.Protocol, testbed.Addrs(m.Pods...)...))
}

// begin starts the load, and returns when every UDP client has had an answer: how long the first takes is not a
// move's fault, since all start at once.
func (m *moving) begin() {
	m.load.Go(func() { m.stall.watch(m.stop, os.Getpid(), m.Process.Pid()) })
	hosts := []*testbed.Host{m.Client, m.Node, m.Pods[2]}
	exchange := func(from *testbed.Host, addr string, anew bool) {
		m.first.Add(1)
		m.load.Go(func() { m.exchange(from, addr, anew) })
	}
	nodePort := func(port int) string { return fmt.Sprintf("%s:%d", m.Node.Addr4, port) }
	for _, from := range hosts {
		for _, addr := range []string{"10.96.0.80:80", "10.96.0.81:80", nodePort(30081)} {
			m.load.Go(func() { m.connect(from, addr) })
		}
		for _, addr := range []string{"10.96.0.82:7", nodePort(30082)} {
			m.load.Go(func() { m.streams(from, addr) })
		}
		for _, addr := range []string{"10.96.0.10:53", "10.96.0.11:53", nodePort(30011)} {
			exchange(from, addr, false)
			exchange(from, addr, true)
		}
	}
	m.load.Go(func() { m.connect(m.Node, "127.0.0.1:30081") })
	exchange(m.Node, "127.0.0.1:30011", false)
	m.first.Wait()
}

func (m *moving) over() bool {
	select {
	case <-m.stop:
		return true
	default:
		return false
	}
}

// pause is between two attempts of one client, so that there is time for the others: more
// of it on one processor, which may be interpreted, and with the race detector, which computes several times as much.
func pause() {
	d := 3 * time.Millisecond
	switch {
	case runtime.NumCPU() == 1:
		d *= 10
	case testing.Short():
		d *= 4
	}
	time.Sleep(d) // there is nothing to wait for: it is load
}

// connect opens one connection after the other.
func (m *moving) connect(from *testbed.Host, addr string) {
	for !m.over() {
		if name, err := from.Who(addr); err != nil || !strings.HasPrefix(name, "pod-") {
			m.T.Errorf("%s asks %s: %q, %v", from, addr, name, err)
			return
		}
		m.connections.Add(1)
		pause()
	}
}

// streams keeps one connection open for all the time, and others for a while.
func (m *moving) streams(from *testbed.Host, addr string) {
	var both sync.WaitGroup
	both.Go(func() { m.stream(from, addr, time.Hour) })
	both.Go(func() {
		for !m.over() {
			m.stream(from, addr, 300*time.Millisecond)
		}
	})
	both.Wait()
}

// stream sends blocks with checksums and wants them back.
func (m *moving) stream(from *testbed.Host, addr string, length time.Duration) {
	c, err := from.Dial(context.Background(), "tcp", addr)
	if err != nil {
		m.T.Errorf("%s opens a stream to %s: %v", from, addr, err)
		return
	}
	defer c.Close()
	block := make([]byte, 4096)
	back := make([]byte, len(block))
	for end := time.Now().Add(length); !m.over() && time.Now().Before(end); pause() {
		for i := 4; i < len(block); i += 8 {
			binary.NativeEndian.PutUint32(block[i:], rand.Uint32())
		}
		binary.NativeEndian.PutUint32(block, crc32.ChecksumIEEE(block[4:]))
		_ = c.SetDeadline(time.Now().Add(testbed.Patience))
		if _, err := c.Write(block); err != nil {
			m.T.Errorf("a stream of %s to %s: %v", from, addr, err)
			return
		}
		if _, err := io.ReadFull(c, back); err != nil {
			m.T.Errorf("a stream of %s to %s: %v", from, addr, err)
			return
		}
		if binary.NativeEndian.Uint32(back) != crc32.ChecksumIEEE(back[4:]) || string(back) != string(block) {
			m.T.Errorf("a stream of %s to %s is corrupted", from, addr)
			return
		}
		m.blocks.Add(1)
	}
}

// exchange asks by UDP, from one port all the time, or from a new one each time. What
// is not answered is sent again, as resolvers do.
func (m *moving) exchange(from *testbed.Host, addr string, anew bool) {
	var c net.Conn
	defer func() {
		if c != nil {
			c.Close()
		}
	}()
	answered := sync.OnceFunc(m.first.Done)
	defer answered()
	for n := uint64(0); !m.over(); n++ {
		if c == nil {
			var err error
			if c, err = from.Dial(context.Background(), "udp", addr); err != nil {
				m.T.Errorf("%s asks %s: %v", from, addr, err)
				return
			}
		}
		start := time.Now()
		err := m.ask(c, n)
		end := time.Now()
		took := end.Sub(start)
		if took > again { // what took no longer was not sent again
			took -= m.stall.during(start, end)
		}
		if took > limit && n > 0 {
			m.T.Errorf("%s asks %s: answered after %v, want at most %v", from, addr, took, limit)
			return
		}
		if err != nil {
			m.T.Errorf("%s asks %s: answered after %v, %v", from, addr, took, err)
			return
		}
		if answered(); n > 0 {
			most(&m.worst, took)
		}
		m.exchanges.Add(1)
		if anew {
			c.Close()
			c = nil
		}
		pause()
	}
}

const (
	// limit is how long an exchange may take, without the time for which a thread got no processor.
	limit = 100 * time.Millisecond
	// again is after which time a client sends its question once more.
	again = 25 * time.Millisecond
)

// most has a hold the longest d of all.
func most(a *atomic.Int64, d time.Duration) {
	for was := a.Load(); int64(d) > was && !a.CompareAndSwap(was, int64(d)); was = a.Load() {
	}
}

// ask sends a number until it comes back. What the node's own rules drop is told its
// programs (EPERM), and is lost all the same.
func (m *moving) ask(c net.Conn, n uint64) error {
	msg := binary.NativeEndian.AppendUint64(nil, n)
	buf := make([]byte, 64)
	for end := time.Now().Add(testbed.Patience); time.Now().Before(end); m.retries.Add(1) {
		if _, err := c.Write(msg); err != nil && !errors.Is(err, syscall.EPERM) {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(again))
		for {
			k, err := c.Read(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			} else if err != nil {
				return err
			}
			if string(buf[:k]) == string(msg) {
				return nil
			} // else it is the answer to what was sent twice
		}
	}
	return errors.New("no answer")
}
