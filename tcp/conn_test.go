package tcp

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// pattern is an endless stream that differs by seed, so that no byte can be lost,
// doubled or exchanged with another connection's unnoticed.
type pattern struct{ *rand.ChaCha8 }

func newPattern(seed uint64) pattern {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return pattern{rand.NewChaCha8(key)}
}

// sum returns the hash of the first n bytes of a pattern.
func sum(seed uint64, n int64) []byte {
	h := sha256.New()
	_, _ = io.CopyN(h, newPattern(seed), n)
	return h.Sum(nil)
}

// plain hides the optimised copy paths of a connection, so that copies go through
// Read and Write.
type plain struct{ io.ReadWriter }

// TestBothWaysAtOnce sends 256 MiB each way through one connection.
func TestBothWaysAtOnce(t *testing.T) {
	size := int64(256 << 20)
	if testing.Short() {
		size = 16 << 20
	}
	atServer := make(chan []byte, 1)
	p := startProxy(t, nil, backend(t, func(c *net.TCPConn) {
		_ = c.SetDeadline(time.Now().Add(5 * patience))
		h := sha256.New()
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = io.CopyN(plain{c}, newPattern(2), size)
			_ = c.CloseWrite()
		})
		_, _ = io.Copy(h, plain{c})
		wg.Wait()
		atServer <- h.Sum(nil)
	}))
	c := p.dial()
	check(t, c.SetDeadline(time.Now().Add(5*patience)))
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := io.CopyN(plain{c}, newPattern(1), size); err != nil {
			t.Error(err)
		}
		report(t, c.CloseWrite())
	})
	h := sha256.New()
	if _, err := io.Copy(h, plain{c}); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if !bytes.Equal(h.Sum(nil), sum(2, size)) {
		t.Error("what the server sent is not what the client got")
	}
	if !bytes.Equal(<-atServer, sum(1, size)) {
		t.Error("what the client sent is not what the server got")
	}
	p.eventually("the connection has ended", func(s Stats) bool { return s.Active == 0 })
	if s := p.Stats(); s.BytesIn != uint64(size) || s.BytesOut != uint64(size) {
		t.Errorf("counted %d bytes in and %d out, want %d each", s.BytesIn, s.BytesOut, size)
	}
}

func TestHalfClose(t *testing.T) {
	t.Run("client first", func(t *testing.T) {
		p := startProxy(t, nil, backend(t, func(c *net.TCPConn) {
			got, _ := io.ReadAll(c) // answers only after the client's end
			_, _ = io.Copy(c, bytes.NewReader(bytes.ToUpper(got)))
		}))
		c := p.dial()
		if _, err := io.WriteString(c, "question"); err != nil {
			t.Fatal(err)
		}
		check(t, c.CloseWrite())
		if got, err := io.ReadAll(c); err != nil || string(got) != "QUESTION" {
			t.Errorf("answer = %q, %v", got, err)
		}
	})
	t.Run("server first", func(t *testing.T) {
		got := make(chan string, 1)
		p := startProxy(t, nil, backend(t, func(c *net.TCPConn) {
			_, _ = io.WriteString(c, "greeting")
			_ = c.CloseWrite()
			b, _ := io.ReadAll(c)
			got <- string(b)
		}))
		c := p.dial()
		if b, err := io.ReadAll(c); err != nil || string(b) != "greeting" {
			t.Fatalf("greeting = %q, %v", b, err)
		}
		if _, err := io.WriteString(c, "thanks"); err != nil {
			t.Fatal(err)
		}
		check(t, c.CloseWrite())
		if s := <-got; s != "thanks" {
			t.Errorf("the server got %q after its own end, want the client's thanks", s)
		}
	})
	t.Run("before the dial has ended", func(t *testing.T) {
		dead := silent(t)
		p := startProxy(t, nil, dead)
		c := p.dial()
		p.eventually("a dial is in flight", func(s Stats) bool { return s.Dialling == 1 })
		if _, err := io.WriteString(c, "early"); err != nil {
			t.Fatal(err)
		}
		check(t, c.CloseWrite())
		p.serve(echoing(t))
		if got, err := io.ReadAll(c); err != nil || string(got) != "early" {
			t.Errorf("echo = %q, %v", got, err)
		}
	})
}

func TestResetIsPassedOn(t *testing.T) {
	t.Run("from the client", func(t *testing.T) {
		seen := make(chan error, 1)
		p := startProxy(t, nil, backend(t, func(c *net.TCPConn) {
			_, _ = io.WriteString(c, "x")
			_, err := c.Read(make([]byte, 1))
			seen <- err
		}))
		c := p.dial()
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		_ = c.SetLinger(0)
		_ = c.Close()
		if err := <-seen; !isReset(err) {
			t.Errorf("the server saw %v, want a reset", err)
		}
	})
	t.Run("from the server, after an answer", func(t *testing.T) {
		p := startProxy(t, nil, backend(t, func(c *net.TCPConn) {
			_, _ = c.Read(make([]byte, 1))
			_ = c.SetLinger(0)
		}))
		c := p.dial()
		if _, err := io.WriteString(c, "x"); err != nil {
			t.Fatal(err)
		}
		_, err := c.Read(make([]byte, 1))
		if !isReset(err) {
			t.Errorf("the client saw %v, want a reset", err)
		}
		if err != io.EOF { // else wine has shown the end of a stream to the client, and maybe to the proxy
			p.eventually("the reset is counted", func(s Stats) bool { return s.BackendResets == 1 })
		}
	})
}

// script is what one end of a storm connection does, chosen at random: it sends
// total bytes of a pattern in pieces with stalls between them, and then ends its stream.
type script struct {
	seed, reset uint64 // reset 1: it resets the connection instead of ending it
	total       int64
	stall       time.Duration
}

func randomScript(r *rand.Rand) script {
	s := script{seed: r.Uint64(), total: r.Int64N(1 << uint(r.IntN(21))), stall: time.Duration(r.IntN(5)) * time.Millisecond}
	if r.IntN(8) == 0 {
		s.reset = 1
	}
	return s
}

// play sends what the script says while it reads the other end's stream into h.
func (s script) play(c *net.TCPConn, h hash.Hash) (received int64, err error) {
	var wg sync.WaitGroup
	var sendErr error
	wg.Go(func() {
		src, rnd := newPattern(s.seed), rand.New(rand.NewPCG(s.seed, 1))
		for left := s.total; left > 0 && sendErr == nil; {
			n := min(left, 1+rnd.Int64N(100_000))
			_, sendErr = io.CopyN(plain{c}, src, n)
			left -= n
			if s.stall > 0 && rnd.IntN(4) == 0 {
				time.Sleep(s.stall) // the stall is what is being tested
			}
		}
		if s.reset == 1 {
			_ = c.SetLinger(0)
			_ = c.Close()
		} else if sendErr == nil {
			sendErr = c.CloseWrite()
		}
	})
	received, err = io.Copy(h, plain{c})
	wg.Wait()
	return received, errors.Join(err, sendErr)
}

// TestStorm runs 200 connections (under wine, whose server is asked for all, 50) in which
// both ends send, stall, end or reset at random. Where nobody resets, every byte arrives and both see a clean end.
func TestStorm(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	type plan struct{ client, server script }
	plans := make([]plan, 200)
	if wine {
		plans = plans[:50]
	}
	for i := range plans {
		plans[i] = plan{randomScript(r), randomScript(r)}
	}
	type outcome struct {
		plan     uint64
		received int64
		sum      []byte
		err      error
	}
	servers := make(chan outcome, len(plans))
	p := startProxy(t, nil, backend(t, func(c *net.TCPConn) {
		var id [8]byte
		if _, err := io.ReadFull(c, id[:]); err != nil {
			return // reset before it said who it is
		}
		i := binary.BigEndian.Uint64(id[:])
		h := sha256.New()
		n, err := plans[i].server.play(c, h)
		servers <- outcome{i, n, h.Sum(nil), err}
	}))
	check := func(who string, sender script, got outcome) error {
		if got.err != nil || got.received != sender.total || !bytes.Equal(got.sum, sum(sender.seed, sender.total)) {
			return fmt.Errorf("%s of connection %d got %d of %d bytes, %v", who, got.plan, got.received, sender.total, got.err)
		}
		return nil
	}
	var wg sync.WaitGroup
	for i := range plans {
		c := p.dial()
		wg.Go(func() {
			defer c.Close()
			if _, err := c.Write(binary.BigEndian.AppendUint64(nil, uint64(i))); err != nil {
				t.Error(err)
			}
			h := sha256.New()
			n, err := plans[i].client.play(c, h)
			if plans[i].client.reset+plans[i].server.reset == 0 {
				report(t, check("client", plans[i].server, outcome{uint64(i), n, h.Sum(nil), err}))
			}
		})
	}
	wg.Wait()
	clean, want := 0, 0
	for _, pl := range plans {
		if pl.client.reset+pl.server.reset == 0 {
			want++
		}
	}
	// Who resets at once may be gone before it is accepted.
	p.eventually("all connections have ended", func(s Stats) bool { return s.Active == 0 && s.Accepted >= uint64(want) })
	for deadline := time.After(patience); clean < want; {
		select {
		case o := <-servers:
			if pl := plans[o.plan]; pl.client.reset+pl.server.reset == 0 {
				clean++
				report(t, check("server", pl.client, o))
			}
		case <-deadline:
			t.Fatalf("%d of %d servers have ended", clean, want)
		}
	}
}
