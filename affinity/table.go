package affinity

import (
	"cmp"
	"net/netip"
	"runtime"
	"sync"
)

// most is the number of clients that a Table remembers. It bounds the memory of a table
// to about 6 MB.
const most = 65536

// Table maps clients to backends of type B. The zero Table is empty and ready to
// use. It must not be copied after first use.
//
// All methods may be called by any number of goroutines. One mutex guards the
// whole table, since a hit writes to the recency list anyway. It is held for tens of
// nanoseconds, once per new connection; DeleteFunc and Sweep give it away after each
// piece of what they have to do.
type Table[B comparable] struct {
	mu  sync.Mutex // guards all below
	max int        // clients; 0 means most

	// index finds the slot of a client. Neither key nor value holds a pointer,
	// so the garbage collector never walks it.
	index map[[16]byte]int32

	// slots holds the entries and the links of two lists: the recency list
	// through prev and next, and the list of free slots through next. Links are
	// slot numbers rather than pointers for the sake of the collector, and since
	// slots may move when the slab grows.
	//
	// The first one is no entry but the ends of the recency list: its next is the most recently
	// used slot and its prev the least recently used one, itself if there is none.
	slots []slot[B]
	free  int32 // first free slot, or none

	evicted uint64
}

// none is the end of a list.
const none = 0

// unused is the prev of a free slot.
const unused = -1

// piece is how many entries DeleteFunc and Sweep look at while other calls wait, which is
// about 0.1 ms.
const piece = 1024

type links struct{ prev, next int32 }

type slot[B comparable] struct {
	client   [16]byte
	backend  B
	lastUsed int64
	links
}

// Get returns the backend that client was last sent to, and makes now its time
// of last use. It reports false if the client is not known, or was last used
// timeout or longer ago, both in nanoseconds. A changed timeout counts at once.
//
// An IPv4 address and its IPv4-mapped IPv6 form are one client; IPv6 zones are
// ignored.
func (t *Table[B]) Get(client netip.Addr, now, timeout int64) (B, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var unknown B
	i, ok := t.index[client.As16()]
	if !ok {
		return unknown, false
	}
	s := &t.slots[i]
	if now-s.lastUsed >= timeout {
		t.remove(i)
		return unknown, false
	}
	t.touch(i, now)
	return s.backend, true
}

// Peek is Get without any effect: it returns the backend remembered for client,
// expired or not, and the time of its last use.
func (t *Table[B]) Peek(client netip.Addr) (backend B, lastUsed int64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.index[client.As16()]
	if !ok {
		return backend, 0, false
	}
	s := &t.slots[i]
	return s.backend, s.lastUsed, true
}

// Put remembers that client was sent to backend at time now, in place of
// whatever was remembered before. If the table is full it evicts the least
// recently used client.
func (t *Table[B]) Put(client netip.Addr, backend B, now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := client.As16()
	if i, ok := t.index[key]; ok {
		t.slots[i].backend = backend
		t.touch(i, now)
		return
	}
	if t.index == nil {
		t.index, t.slots = make(map[[16]byte]int32), make([]slot[B], 1)
	}
	if len(t.index) >= cmp.Or(t.max, most) {
		t.remove(t.slots[none].prev)
		t.evicted++
	}
	i := t.take()
	s := &t.slots[i]
	s.client, s.backend, s.lastUsed = key, backend, now
	t.pushFront(i)
	t.index[key] = i
}

// DeleteFunc removes all clients whose backend matches. Those that are put meanwhile may stay
// or not. Other calls wait while match is called, which must not call the table.
func (t *Table[B]) DeleteFunc(match func(B) bool) {
	for next := t.deletePiece(none+1, match); next != none; next = t.deletePiece(next, match) {
		runtime.Gosched() // to calls that wait: else they would find the lock taken again
	}
}

// deletePiece does it for some slots, and returns the slot to go on from. A client stays in
// its slot whatever is called meanwhile, unlike its place in the order of use, so that none is
// missed.
func (t *Table[B]) deletePiece(from int32, match func(B) bool) (next int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	end := min(int(from)+piece, len(t.slots))
	if end < len(t.slots) {
		next = int32(end)
	}
	for i := from; int(i) < end; i++ {
		if s := &t.slots[i]; s.prev != unused && match(s.backend) {
			t.remove(i)
		}
	}
	t.releaseIfEmpty()
	return next
}

// Sweep removes the clients that were last used timeout or longer ago. It takes time in
// proportion to their number. An expired client that was entered out of order, by a caller whose
// clock differs, waits for the next Sweep, and Get does not return it meanwhile.
func (t *Table[B]) Sweep(now, timeout int64) {
	for t.sweepPiece(now, timeout) {
		runtime.Gosched() // as in DeleteFunc
	}
}

// sweepPiece does it for those that expired first, and reports whether there may be more.
func (t *Table[B]) sweepPiece(now, timeout int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	removed := 0
	for ; removed < piece && len(t.index) > 0; removed++ {
		oldest := t.slots[none].prev
		if now-t.slots[oldest].lastUsed < timeout {
			break
		}
		t.remove(oldest)
	}
	t.releaseIfEmpty()
	return removed == piece
}

// Since calls visit for the clients that were last used at time from or later, least recently
// used first, so that putting them into another table in this order rebuilds this one. It may
// leave out some that callers with slightly different clocks entered out of order.
//
// Others wait meanwhile; visit must not call the table. An IPv4 client is given as an IPv4
// address.
func (t *Table[B]) Since(from int64, visit func(client netip.Addr, backend B, lastUsed int64)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.index) == 0 {
		return
	}
	i := t.slots[none].next
	for i != none && t.slots[i].lastUsed >= from {
		i = t.slots[i].next
	}
	for i = t.slots[i].prev; i != none; i = t.slots[i].prev {
		s := &t.slots[i]
		visit(netip.AddrFrom16(s.client).Unmap(), s.backend, s.lastUsed)
	}
}

// Len returns the number of clients remembered, including expired ones that no
// Sweep has removed yet.
func (t *Table[B]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.index)
}

// Evicted returns how many clients were deleted for lack of room since the table was made
// because it was full.
func (t *Table[B]) Evicted() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.evicted
}

// take returns a free slot, of the slab if possible. Its links are stale.
func (t *Table[B]) take() int32 {
	if i := t.free; i != none {
		t.free = t.slots[i].next
		return i
	}
	t.slots = append(t.slots, slot[B]{})
	return int32(len(t.slots) - 1)
}

// touch makes i the most recently used slot. A clock that lags behind another
// caller's does not make the entry older.
func (t *Table[B]) touch(i int32, now int64) {
	s := &t.slots[i]
	s.lastUsed = max(s.lastUsed, now)
	if t.slots[none].next != i {
		t.unlink(i)
		t.pushFront(i)
	}
}

// remove deletes the client in slot i and frees the slot. The backend is cleared
// since it may be a pointer that keeps much else alive.
func (t *Table[B]) remove(i int32) {
	t.unlink(i)
	s := &t.slots[i]
	delete(t.index, s.client)
	*s = slot[B]{links: links{prev: unused, next: t.free}}
	t.free = i
}

// releaseIfEmpty returns the memory of a crowd that has left; maps and slabs
// never shrink by themselves.
func (t *Table[B]) releaseIfEmpty() {
	if len(t.index) == 0 {
		t.index, t.slots, t.free = nil, nil, none
	}
}

func (t *Table[B]) pushFront(i int32) {
	ends := &t.slots[none]
	t.slots[i].links = links{prev: none, next: ends.next}
	t.slots[ends.next].prev = i
	ends.next = i
}

func (t *Table[B]) unlink(i int32) {
	s := &t.slots[i]
	t.slots[s.prev].next = s.next
	t.slots[s.next].prev = s.prev
}
