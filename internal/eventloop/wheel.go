package eventloop

import "math/bits"

const (
	// Tick is the resolution of timers, in ns: a Timer fires up to one Tick late and never early. 5 ms keeps the worst
	// case of a 250 ms dial timeout or UDP idle timeout within 2 %.
	Tick = int64(5_000_000)

	slots = 512 // one revolution is 2.56 s; later deadlines are passed over once a revolution
)

// Expirer is called when a Timer has run out, on its loop. The Timer is stopped by then and may be started again.
type Expirer interface {
	// Expire handles the end of t.
	Expire(t *Timer)
}

// Timer is one deadline, embedded in what it guards, so that starting and stopping allocates nothing. Its zero value is
// a stopped Timer. It belongs to the loop it was started on.
type Timer struct {
	next, prev *Timer
	when       int64 // deadline in ticks since the epoch of Now
	owner      Expirer
}

// Active reports whether the Timer is running.
func (t *Timer) Active() bool { return t.next != nil }

// insert puts t at the end of the list of h.
func (t *Timer) insert(h *Timer) {
	t.prev, t.next = h.prev, h
	t.prev.next, h.prev = t, t
}

func (t *Timer) unlink() { t.prev.next, t.next.prev = t.next, t.prev }

// wheel is a hashed timing wheel (Varghese and Lauck, 1987, scheme 6): insert and remove are O(1).
type wheel struct {
	slot  [slots]Timer // list heads
	used  [slots / 64]uint64
	due   Timer // list head of those that fire; here since a local one would be allocated
	last  int64 // the last tick that was fired
	count int
}

func (w *wheel) init(now int64) {
	w.last = now / Tick
	for i := range w.slot {
		h := &w.slot[i]
		h.next, h.prev = h, h
	}
}

// add starts t so that it fires at the first tick at or after deadline (ns).
func (w *wheel) add(t *Timer, owner Expirer, deadline int64) {
	t.owner = owner
	t.when = max((deadline+Tick-1)/Tick, w.last+1)
	i := t.when % slots
	h := &w.slot[i]
	t.insert(h)
	w.used[i/64] |= 1 << (i % 64)
	w.count++
}

func (w *wheel) remove(t *Timer) {
	if !t.Active() {
		return
	}
	t.unlink()
	t.next, t.prev = nil, nil
	w.count--
}

// fire expires every Timer whose deadline is at or before now (ns). Expire may start and stop any Timer.
func (w *wheel) fire(now int64) {
	target := now / Tick
	first := max(w.last+1, target-slots+1) // a longer gap is one revolution
	w.last = target
	for tick := first; tick <= target; tick++ {
		w.fireSlot(tick%slots, target)
	}
}

func (w *wheel) fireSlot(i, target int64) {
	head := &w.slot[i]
	if head.next == head {
		w.used[i/64] &^= 1 << (i % 64)
		return
	}
	// The due ones move to a list of their own first: Expire may change the slot.
	due := &w.due
	due.next, due.prev = due, due
	for t := head.next; t != head; {
		next := t.next
		if t.when <= target {
			t.unlink()
			t.insert(due)
		}
		t = next
	}
	if head.next == head {
		w.used[i/64] &^= 1 << (i % 64)
	}
	for due.next != due {
		t := due.next
		w.remove(t)
		t.owner.Expire(t)
	}
}

// next returns the deadline (ns) of the next slot that holds a Timer, perhaps of a later revolution; -1 if none does.
func (w *wheel) next() int64 {
	if w.count == 0 {
		return -1
	}
	from := w.last + 1
	for d := int64(0); d < slots; {
		i := (from + d) % slots
		if word := w.used[i/64] >> (i % 64); word != 0 {
			d += int64(bits.TrailingZeros64(word))
			return (from + d) * Tick
		}
		d += 64 - i%64
	}
	return -1
}
