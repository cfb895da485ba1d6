package counters

import (
	"sync/atomic"
	"testing"
)

type common[C, G any] struct {
	Active   G
	Accepted C
}

type list[C, G any] struct {
	common[C, G]
	Bytes C
}

func TestAddAndRestore(t *testing.T) {
	var c list[atomic.Uint64, atomic.Int64]
	c.Active.Add(-1)
	c.Accepted.Add(2)
	c.Bytes.Add(3)
	var sum list[uint64, int64]
	Add(&sum, &c)
	Add(&sum, &c)
	if want := (list[uint64, int64]{common[uint64, int64]{-2, 4}, 6}); sum != want {
		t.Errorf("two loops add up to %+v, want %+v", sum, want)
	}
	Restore(&c, &sum)
	if c.Active.Load() != -1 || c.Accepted.Load() != 6 || c.Bytes.Load() != 9 {
		t.Errorf("after Restore: %d, %d, %d", c.Active.Load(), c.Accepted.Load(), c.Bytes.Load())
	}
}
