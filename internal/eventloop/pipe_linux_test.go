package eventloop

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPipes(t *testing.T) {
	before := openDescriptors(t)
	budget := Budget{Limit: 4}
	pool := Pipes{Budget: &budget}
	from, to := pair(t)
	defer func() { _ = unix.Close(from) }()
	sink, out := pair(t)
	defer func() { _ = unix.Close(sink) }()

	p, err := pool.Borrow()
	check(t, err)
	if _, err := p.Fill(from); err != unix.EAGAIN {
		t.Fatalf("Fill from an empty socket = %v, want EAGAIN", err)
	}
	if _, err := unix.Write(to, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if n, err := p.Fill(from); n != 5 || err != nil || p.Len() != 5 {
		t.Fatalf("Fill = %d, %v; the pipe holds %d", n, err, p.Len())
	}
	if n, err := p.Drain(sink); n != 5 || err != nil || p.Len() != 0 {
		t.Fatalf("Drain = %d, %v; the pipe holds %d", n, err, p.Len())
	}
	got := make([]byte, 8)
	if n, _ := unix.Read(out, got); string(got[:n]) != "hello" {
		t.Fatalf("the sink got %q", got[:n])
	}

	dirty, err := pool.Borrow()
	check(t, err)
	if _, err := pool.Borrow(); !errors.Is(err, unix.EMFILE) {
		t.Errorf("a pipe beyond the budget = %v, want EMFILE", err)
	}
	if _, err := unix.Write(to, []byte("secret")); err != nil {
		t.Fatal(err)
	}
	if _, err := dirty.Fill(from); err != nil {
		t.Fatal(err)
	}
	pool.Return(dirty)
	if budget.Used() != 2 {
		t.Errorf("%d descriptors used after a pipe with bytes came back, want its 2 freed", budget.Used())
	}
	pool.Return(p)
	if again, err := pool.Borrow(); again != p || err != nil {
		t.Errorf("an empty pipe was not used again: %v", err)
	}
	pool.Return(p)
	pool.Trim()
	if budget.Used() != 0 || pool.Lent() != 0 {
		t.Errorf("%d descriptors used, %d pipes lent at the end", budget.Used(), pool.Lent())
	}
	if n := openDescriptors(t); n != before+4 { // the sockets of this test
		t.Errorf("%d descriptors open, want %d", n, before+4)
	}
}
