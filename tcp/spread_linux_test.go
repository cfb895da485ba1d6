package tcp

import (
	"io"
	"net"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/internal/socket"
)

// loads returns how many connections each loop has.
func (p *proxy) loads() (loads []int64) {
	for _, sh := range p.shards {
		loads = append(loads, sh.load())
	}
	return loads
}

// TestSpread: connections that last are spread evenly, whatever the kernel's hash says; short ones are served where
// they are accepted.
func TestSpread(t *testing.T) {
	p := startProxy(t, nil, echoing(t))
	const clients = 64
	for range clients {
		exchange(t, p.dial())
		if l := p.loads(); slices.Max(l)-slices.Min(l) > 1 {
			t.Fatalf("the loops have %d connections", l)
		}
	}
	moved := p.Stats().Spread
	if moved == 0 || moved > clients/2+clients/8 {
		t.Errorf("%d of %d connections have been moved", moved, clients)
	}
	p.eventually("they are settled", func(Stats) bool { return !p.settling() })
	for range 4 * lastingShare * len(p.shards) {
		c := p.dial()
		exchange(t, c)
		check(t, c.CloseWrite())
		_, err := io.Copy(io.Discard, c)
		check(t, err)
	}
	p.eventually("the short ones have ended", func(s Stats) bool { return s.Active == clients })
	p.eachShard(func(sh *shard) {
		if sh.spread.lasting >= few {
			t.Errorf("%d of %d connections are taken to last", sh.spread.lasting, all)
		}
	})
	moved = p.Stats().Spread
	for range clients / 4 { // before one of them has lasted
		exchange(t, p.dial())
	}
	if now := p.Stats().Spread; now != moved {
		t.Errorf("%d connections have been moved after short ones", now-moved)
	}
}

// TestSpreadHasRoom: a loop with as many dials as may be gets no clients of another.
func TestSpreadHasRoom(t *testing.T) {
	p := startProxy(t, func(s *Server) { s.MaxDials = 4 }, echoing(t))
	exchange(t, p.dial())
	from, to := p.shards[0], p.shards[1]
	if from.load() == 0 {
		from, to = to, from
	}
	check(t, from.Loop.Do(func() {
		if from.lighter() != to {
			t.Error("a loop with a connection keeps the next, beside one without any")
		}
		to.count.Dialling.Add(4)
		if from.lighter() != nil {
			t.Error("a loop gets a client that has no room for its dial")
		}
		to.count.Dialling.Add(-4)
	}))
}

// TestSpreadWhileHalted: a client that is on its way to another loop when all is handed over is not lost.
func TestSpreadWhileHalted(t *testing.T) {
	p := startProxy(t, nil, echoing(t))
	exchange(t, p.dial())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	check(t, err)
	defer c.Close()
	file, err := l.(*net.TCPListener).File()
	check(t, err)
	defer file.Close()
	fd, peer, err := socket.Accept(int(file.Fd()))
	check(t, err)

	resume, err := p.Loops.Halt()
	check(t, err)
	if !p.shards[1].take(accepted{fd: fd, peer: peer, steered: true}) {
		t.Error("a halted loop does not take a client")
	}
	n := 0
	check(t, p.Freeze(func(*Frozen) error { n++; return nil }))
	p.Thaw()
	resume()
	if n != 2 {
		t.Errorf("%d connections are handed over, want the one that was there and the one on its way", n)
	}
	exchange(t, c.(*net.TCPConn))
}
