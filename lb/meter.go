package lb

// flushEvery is how many bytes a Meter keeps to itself. A connection of bulk data flushes
// some thousand times a second, one of small messages once, at its end.
const flushEvery = 256 << 10

// Meter counts the bytes that one connection or flow moves, and adds them to the backend's
// counters now and then, so that loops which share a backend do not write to
// the same cache line for each datagram. The zero Meter is ready, for one goroutine.
type Meter struct{ in, out, flushes uint32 }

// Add counts bytes from the client and to it, fewer than 2 GiB at once.
func (m *Meter) Add(c Choice, in, out int) {
	m.in += uint32(in)
	m.out += uint32(out)
	if m.in >= flushEvery || m.out >= flushEvery {
		m.Flush(c)
	}
}

// Flush adds what the Meter has kept. Call it before c is done. If c is not valid it is
// dropped.
func (m *Meter) Flush(c Choice) {
	if c.backend != nil {
		if m.in > 0 {
			c.backend.bytesIn.Add(uint64(m.in))
		}
		if m.out > 0 {
			c.backend.bytesOut.Add(uint64(m.out))
		}
	}
	*m = Meter{flushes: m.flushes + 1}
}
