package eventloop

// ScratchSize is how many bytes a loop reads from a stream at once, and so the most that wait in user space for one
// direction of a connection.
const ScratchSize = 64 << 10

// classes are the sizes of pooled buffers. A remainder takes the smallest that holds it, so that 10,000 stalled
// connections with a few hundred bytes each cost 40 MiB and not 640.
var classes = [...]int{4 << 10, 16 << 10, ScratchSize}

// keep bounds the free buffers of one class of one loop; more go to the collector.
const keep = 64

// Buffer holds bytes that wait for a descriptor to become writable.
type Buffer struct {
	data  []byte
	class uint8
	from  int // first byte not yet taken
	to    int // end of the bytes
}

// Bytes returns what waits, until the next Take.
func (b *Buffer) Bytes() []byte { return b.data[b.from:b.to] }

// Take drops the first n waiting bytes.
func (b *Buffer) Take(n int) { b.from += n }

// Len returns how many bytes wait.
func (b *Buffer) Len() int { return b.to - b.from }

// Buffers is the pool of one loop.
type Buffers struct {
	free [len(classes)][]*Buffer
	lent int
}

// Copy borrows a buffer holding a copy of b, at most ScratchSize, until Return.
func (p *Buffers) Copy(b []byte) *Buffer {
	c := 0
	for len(b) > classes[c] {
		c++
	}
	buf := pop(&p.free[c])
	if buf == nil {
		buf = &Buffer{data: make([]byte, classes[c]), class: uint8(c)}
	}
	buf.from, buf.to = 0, copy(buf.data, b)
	p.lent++
	return buf
}

// pop takes the last of some free ones, nil if there is none.
func pop[T any](free *[]*T) (last *T) {
	if n := len(*free); n > 0 {
		last, *free = (*free)[n-1], (*free)[:n-1]
	}
	return last
}

// Adopt borrows a buffer that is b itself, of any length, until Return.
func (p *Buffers) Adopt(b []byte) *Buffer {
	p.lent++
	return &Buffer{data: b, class: uint8(len(classes)), to: len(b)}
}

// Return takes a buffer back. The caller must not use it any more.
func (p *Buffers) Return(b *Buffer) {
	p.lent--
	if int(b.class) == len(classes) {
		return // adopted
	}
	if f := &p.free[b.class]; len(*f) < keep {
		*f = append(*f, b)
	}
}

// Lent returns how many buffers are borrowed.
func (p *Buffers) Lent() int { return p.lent }
