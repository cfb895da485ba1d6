package lb

// tellEvery is how many bytes a Meter keeps to itself. A connection of bulk data tells
// some thousand times a second, one of small messages once, at its end.
const tellEvery = 256 << 10

// Meter counts the bytes that one connection or flow moves, and tells the backend's
// counters of them now and then, so that loops which share a backend do not write to
// the same cache line for each datagram. The zero Meter is ready; it is for one
// goroutine.
type Meter struct{ in, out uint32 }

// Add counts bytes from the client and to it, fewer than 2 GiB at once.
func (m *Meter) Add(c Choice, in, out int) {
	m.in += uint32(in)
	m.out += uint32(out)
	if m.in >= tellEvery || m.out >= tellEvery {
		m.Tell(c)
	}
}

// Tell tells what has not been told yet. Call it before c is done. If c is not valid
// it is forgotten.
func (m *Meter) Tell(c Choice) {
	if c.backend != nil {
		if m.in > 0 {
			c.backend.bytesIn.Add(uint64(m.in))
		}
		if m.out > 0 {
			c.backend.bytesOut.Add(uint64(m.out))
		}
	}
	*m = Meter{}
}
