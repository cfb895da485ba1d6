package affinity

import (
	"cmp"
	"net/netip"
	"runtime"
	"sync"
)

// most is Table.Max by default.
const most = 65536

// Key is a client by its address: an IPv4 address and its IPv4-mapped IPv6 form are one client, and zones are ignored.
type Key [16]byte

// KeyOf returns the key of an address.
func KeyOf(client netip.Addr) Key { return client.As16() }

// Addr returns the address, an IPv4 one as such.
func (k Key) Addr() netip.Addr { return netip.AddrFrom16(k).Unmap() }

// Table maps clients, by keys of type K, to what is remembered of them, of type B. The zero Table is empty and ready to
// use. It must not be copied after first use.
//
// All methods may be called by any number of goroutines. One mutex guards the
// whole table, since a hit writes to the recency list anyway. It is held for tens of
// nanoseconds, once per new connection; DeleteFunc and Sweep give it away after each
// piece of what they have to do.
type Table[K, B comparable] struct {
	// Max bounds the clients. 0: 65,536, which take about 6 MB. Set it before the first Put.
	Max int

	mu sync.Mutex // guards all below

	// index finds the slot of a client. With keys without pointers, such as [Key],
	// the garbage collector never walks it.
	index map[K]int32

	// slots holds the entries and the links of two lists: the recency list
	// through prev and next, and the list of free slots through next. Links are
	// slot numbers rather than pointers for the sake of the collector, and since
	// slots may move when the slab grows.
	//
	// The first one is no entry but the ends of the recency list: its next is the most recently
	// used slot and its prev the least recently used one, itself if there is none.
	slots []slot[K, B]
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

type slot[K, B comparable] struct {
	client   K
	backend  B
	lastUsed int64
	links
}

// Get returns the backend that client was last sent to, and makes now its time
// of last use. It reports false if the client is not known, or was last used
// timeout or longer ago, both in nanoseconds. A changed timeout counts at once.
func (t *Table[K, B]) Get(client K, now, timeout int64) (B, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var unknown B
	i, ok := t.index[client]
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
func (t *Table[K, B]) Peek(client K) (backend B, lastUsed int64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.index[client]
	if !ok {
		return backend, 0, false
	}
	s := &t.slots[i]
	return s.backend, s.lastUsed, true
}

// Put remembers that client was sent to backend at time now, in place of
// whatever was remembered before. If the table is full it evicts the least
// recently used client.
func (t *Table[K, B]) Put(client K, backend B, now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.put(client, backend, now)
}

func (t *Table[K, B]) put(client K, backend B, now int64) {
	if i, ok := t.index[client]; ok {
		t.slots[i].backend = backend
		t.touch(i, now)
		return
	}
	if t.index == nil {
		t.index, t.slots = make(map[K]int32), make([]slot[K, B], 1)
	}
	if len(t.index) >= cmp.Or(t.Max, most) {
		t.remove(t.slots[none].prev)
		t.evicted++
	}
	i := t.take()
	s := &t.slots[i]
	s.client, s.backend, s.lastUsed = client, backend, now
	t.pushFront(i)
	t.index[client] = i
}

// DeleteFunc removes all clients whose backend matches. Those that are put meanwhile may stay
// or not. Other calls wait while match is called, which must not call the table.
func (t *Table[K, B]) DeleteFunc(match func(B) bool) {
	for next := t.deletePiece(none+1, match); next != none; next = t.deletePiece(next, match) {
		runtime.Gosched() // to calls that wait: else they would find the lock taken again
	}
}

// deletePiece does it for some slots, and returns the slot to go on from. A client stays in
// its slot whatever is called meanwhile, unlike its place in the order of use, so that none is
// missed.
func (t *Table[K, B]) deletePiece(from int32, match func(B) bool) (next int32) {
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
func (t *Table[K, B]) Sweep(now, timeout int64) {
	for t.sweepPiece(now, timeout) {
		runtime.Gosched() // as in DeleteFunc
	}
}

// sweepPiece does it for those that expired first, and reports whether there may be more.
func (t *Table[K, B]) sweepPiece(now, timeout int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	removed := t.sweep(now, timeout, piece)
	t.releaseIfEmpty()
	return removed == piece
}

// PutAndSweep is Put, after two clients were removed that were last used timeout or longer ago, if there are: so a
// table that clients are put into all the time is no larger than what has not expired.
func (t *Table[K, B]) PutAndSweep(client K, backend B, now, timeout int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweep(now, timeout, 2)
	t.put(client, backend, now)
}

// sweep removes at most so many clients that have expired, and returns how many it removed.
func (t *Table[K, B]) sweep(now, timeout int64, most int) (removed int) {
	for ; removed < most && len(t.index) > 0; removed++ {
		oldest := t.slots[none].prev
		if now-t.slots[oldest].lastUsed < timeout {
			break
		}
		t.remove(oldest)
	}
	return removed
}

// Since calls visit for the clients that were last used at time from or later, least recently
// used first, so that putting them into another table in this order rebuilds this one. It may
// leave out some that callers with slightly different clocks entered out of order.
//
// Others wait meanwhile; visit must not call the table.
func (t *Table[K, B]) Since(from int64, visit func(client K, backend B, lastUsed int64)) {
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
		visit(s.client, s.backend, s.lastUsed)
	}
}

// Len returns the number of clients remembered, including expired ones that no
// Sweep has removed yet.
func (t *Table[K, B]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.index)
}

// Evicted returns how many clients were deleted for lack of room since the table was made
// because it was full.
func (t *Table[K, B]) Evicted() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.evicted
}

// take returns a free slot, of the slab if possible. Its links are stale.
func (t *Table[K, B]) take() int32 {
	if i := t.free; i != none {
		t.free = t.slots[i].next
		return i
	}
	t.slots = append(t.slots, slot[K, B]{})
	return int32(len(t.slots) - 1)
}

// touch makes i the most recently used slot. A clock that lags behind another
// caller's does not make the entry older.
func (t *Table[K, B]) touch(i int32, now int64) {
	s := &t.slots[i]
	s.lastUsed = max(s.lastUsed, now)
	if t.slots[none].next != i {
		t.unlink(i)
		t.pushFront(i)
	}
}

// remove deletes the client in slot i and frees the slot. The backend is cleared
// since it may be a pointer that keeps much else alive.
func (t *Table[K, B]) remove(i int32) {
	t.unlink(i)
	s := &t.slots[i]
	delete(t.index, s.client)
	*s = slot[K, B]{links: links{prev: unused, next: t.free}}
	t.free = i
}

// releaseIfEmpty returns the memory of a crowd that has left; maps and slabs
// never shrink by themselves.
func (t *Table[K, B]) releaseIfEmpty() {
	if len(t.index) == 0 {
		t.index, t.slots, t.free = nil, nil, none
	}
}

func (t *Table[K, B]) pushFront(i int32) {
	ends := &t.slots[none]
	t.slots[i].links = links{prev: none, next: ends.next}
	t.slots[ends.next].prev = i
	ends.next = i
}

func (t *Table[K, B]) unlink(i int32) {
	s := &t.slots[i]
	t.slots[s.prev].next = s.next
	t.slots[s.next].prev = s.prev
}
