package balancer

// flushEvery is how many bytes a Meter keeps to itself. A connection of bulk data flushes
// some thousand times a second, one of small messages when its owner says so.
const flushEvery = 256 << 10

// Meter counts the bytes that one connection or flow moves, and adds them to the backend's
// counters now and then, so that loops which share a backend do not write to
// the same cache line for each datagram. The zero Meter is ready, for one goroutine.
type Meter struct {
	in, out               uint64
	countedIn, countedOut uint32 // the low bits of what the backend's counters have of it
}

// ResumeMeter returns one of a connection that has moved so much in another process, which has counted all of it.
func ResumeMeter(in, out uint64) Meter { return Meter{in, out, uint32(in), uint32(out)} }

// Total returns how many bytes have come from the client, and gone to it.
func (m *Meter) Total() (in, out uint64) { return m.in, m.out }

// Add counts bytes from the client and to it, fewer than 2 GiB at once. It reports whether the Meter keeps bytes and
// kept none before: Flush is to be called some seconds later.
func (m *Meter) Add(c Choice, in, out int) (first bool) {
	kept := uint32(m.in) - m.countedIn | uint32(m.out) - m.countedOut
	m.in += uint64(in)
	m.out += uint64(out)
	if uint32(m.in)-m.countedIn >= flushEvery || uint32(m.out)-m.countedOut >= flushEvery {
		m.Flush(c)
		return false
	}
	return kept == 0 && in|out != 0
}

// Flush adds what the Meter has kept. Call it before c is done. If c is not valid it is
// dropped.
func (m *Meter) Flush(c Choice) {
	in, out := uint32(m.in)-m.countedIn, uint32(m.out)-m.countedOut
	m.countedIn, m.countedOut = uint32(m.in), uint32(m.out)
	if c.backend == nil {
		return
	}
	if in > 0 {
		c.backend.bytesIn.Add(uint64(in))
	}
	if out > 0 {
		c.backend.bytesOut.Add(uint64(out))
	}
}
