package eventloop

import (
	"bytes"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestHalt(t *testing.T) {
	g := newGroup(t, 3)
	l := g.Loops()[0]
	a, b := pair(t)
	events := make(chan Event, 10)
	do(t, l, func() error { return l.AddRead(a, handler(func(ev Event) { events <- ev })) })
	resume, err := g.Halt()
	check(t, err)
	if _, err := unix.Write(b, []byte("x")); err != nil {
		t.Fatal(err)
	}
	ran := make(chan struct{})
	check(t, l.Post(func() { close(ran) }))
	select {
	case <-events:
		t.Error("an event while the loop is halted")
	case <-ran:
		t.Error("a posted function runs while the loop is halted")
	case <-time.After(20 * time.Millisecond):
	}
	resume()
	wait(t, ran, "posted function")
	wait(t, events, "event of what came meanwhile")
	do(t, l, func() error { return l.Close(a) })
	check(t, g.Close())
	if _, err := g.Halt(); err != ErrClosed {
		t.Errorf("Halt of a closed group = %v, want ErrClosed", err)
	}
}

func TestEmptyPipe(t *testing.T) {
	var pool Pipes
	from, to := pair(t)
	defer func() { _ = unix.Close(from) }()
	p, err := pool.Borrow()
	check(t, err)
	want := bytes.Repeat([]byte("0123456789"), 1000)
	if _, err := unix.Write(to, want); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Fill(from); err != nil {
		t.Fatal(err)
	}
	if got, err := p.Empty(); err != nil || !bytes.Equal(got, want) || p.Len() != 0 {
		t.Errorf("%d bytes out of the pipe, %v; want %d", len(got), err, len(want))
	}
	pool.Return(p)
	pool.Trim()
}
