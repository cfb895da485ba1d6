package eventloop

import "testing"

// TestListen: frontends have a socket for each loop while all have a quarter of the limit, one beyond, and no more than
// three quarters; what flows have taken refuses none of the first few, and what is closed can be had again.
func TestListen(t *testing.T) {
	b := &Budget{Limit: 400}
	var got []int64
	for {
		n, err := b.Listen(4)
		if err != nil {
			break
		}
		got = append(got, n)
	}
	wide := 0
	for _, n := range got {
		if n == 4 {
			wide++
		} else if n != 1 {
			t.Fatalf("%d sockets for a frontend", n)
		}
	}
	if wide != 25 || len(got) != 25+200 {
		t.Errorf("%d frontends, %d of them with a socket for each loop; want 225 and 25", len(got), wide)
	}
	if have, free := b.Listened(); have != 300 || free != 0 {
		t.Errorf("%d listening and %d free, want 300 and 0", have, free)
	}
	if b.Used() != 300-25 || b.Exhausted() != 1 {
		t.Errorf("%d of the limit are used and %d refused, want 275 and 1", b.Used(), b.Exhausted())
	}
	if b.Widen(1) {
		t.Error("a frontend got another socket beyond a quarter of the limit")
	}
	b.Listening(-300)
	if have, free := b.Listened(); have != 0 || free != 300 || b.Used() != 0 {
		t.Errorf("%d listening, %d free and %d used after all have been closed", have, free, b.Used())
	}

	if !b.Take(400) {
		t.Fatal("flows cannot have what is free")
	}
	for i := range 6 {
		if n, err := b.Listen(4); err != nil || n != 4 {
			t.Fatalf("frontend %d beside flows that have all: %d sockets, %v", i, n, err)
		}
	}
	if _, err := b.Listen(4); err == nil {
		t.Error("sockets of frontends have taken what the rest of the program needs")
	}
	if !(*Budget)(nil).Widen(1) {
		t.Error("without a budget not all can be had")
	}
}
