package udp

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/mmsg"
	"github.com/sluice-lb/sluice/internal/socket"
)

const (
	slots = mmsg.Slots

	datagramSize = 64 << 10 // holds any datagram of UDP, and any GRO batch: 16 bits of length
	quoteSize    = 2 << 10  // holds what ICMP quotes of one: at most 1,280 bytes

	// maxBatchBytes is how many bytes go as one: what an IPv4 packet holds. maxBatch is
	// how many datagrams: newer kernels take 128, but all take 64 (UDP_MAX_SEGMENTS).
	maxBatchBytes = 1<<16 - 1 - 20 - 8
	maxBatch      = 64
)

// outgoing is messages for one destination, each a datagram or a GRO batch as it was received,
// for sendmmsg(2). Datagrams in a row that are equally long pass through the kernel as one, a
// GSO batch (UDP_SEGMENT, udp(7)).
type outgoing struct {
	n       int // messages in it
	message [slots]message
	next    place              // of the first datagram that has not gone
	left    int                // datagrams that have not gone
	last    int                // length of the datagram that went last, bytes
	gso     bool               // several datagrams may go as one (UDP_SEGMENT)
	prefix  []byte             // goes before each datagram, which go one by one then; nil: nothing
	plain   bool               // datagrams go one by one: the kernel, or the path, does not take GSO batches
	to      *socket.Name       // nil: the peer of a connected socket
	from    mmsg.ControlBuffer // control message for our address
	fromLen int                // bytes of it

	// What send makes of it.

	header  [slots]unix.Mmsghdr
	runs    [slots]run // of each header
	vector  [slots]unix.Iovec
	control [slots]mmsg.ControlBuffer
}

// message is what one receive has brought: a datagram, or several in a row of which all
// but the last are as long as segment says.
type message struct {
	data    []byte
	segment int
}

// place is where a datagram begins: in which message, and at which byte of it.
type place struct{ message, offset int }

// run is the datagrams that one header sends.
type run struct {
	datagrams, bytes int
	size             int   // of each but the last, which may be shorter
	vectors          int   // that it takes
	end              place // where the next run begins
}

// last returns the length of the run's last datagram.
func (r *run) last() int { return r.bytes - (r.datagrams-1)*r.size }

// reset empties the batch, for a connected socket.
func (out *outgoing) reset(plain bool) {
	out.n, out.next, out.left, out.plain = 0, place{}, 0, plain || !out.gso
	out.to, out.fromLen, out.prefix = nil, 0, nil
}

// precede has p go before each datagram, which are not counted with it.
func (out *outgoing) precede(p []byte) {
	out.prefix = p
	out.plain = out.plain || p != nil
}

// resetTo empties the batch, for a destination and from one of our addresses.
func (out *outgoing) resetTo(to *socket.Name, from netip.Addr, plain bool) {
	out.reset(plain)
	out.to = to
	out.fromLen = mmsg.PutLocalAddr(out.from[:], from, 0)
}

// add appends a message, which must stay as it is until it is sent. segment is 0 for a
// datagram.
func (out *outgoing) add(p []byte, segment int) {
	if segment <= 0 || segment > len(p) {
		segment = len(p)
	}
	out.message[out.n] = message{p, segment}
	out.n++
	out.left += datagrams(len(p), segment)
}

// datagrams returns how many make up a message of size bytes.
func datagrams(size, segment int) int {
	if segment <= 0 || segment >= size {
		return 1
	}
	return (size + segment - 1) / segment
}

// send sends what has not gone and returns how many datagrams and bytes went. If some are
// left, err or, if sendmmsg has not reported it (sendmmsg(2), BUGS), the next call says why.
func (out *outgoing) send(fd int) (n, bytes int, err error) {
	for out.left > 0 {
		headers := out.pack()
		sent, err := mmsg.Send(fd, headers)
		if err == unix.EMSGSIZE {
			// It may be about an earlier datagram, reported by ICMP, and is cleared now (sk_err).
			sent, err = mmsg.Send(fd, headers)
		}
		if err != nil && out.runs[0].datagrams > 1 && unsegmentable(err) {
			out.plain = true
			headers = out.pack()
			sent, err = mmsg.Send(fd, headers)
		}
		for i := range sent {
			r := &out.runs[i]
			n += r.datagrams
			bytes += r.bytes
			out.left -= r.datagrams
			out.next, out.last = r.end, r.last()
		}
		if err != nil || sent < len(headers) {
			return n, bytes, err
		}
	}
	return n, bytes, nil
}

// skip drops the first datagram that has not gone.
func (out *outgoing) skip() {
	m := &out.message[out.next.message]
	out.next.offset += m.segment
	if out.next.offset >= len(m.data) {
		out.next = place{out.next.message + 1, 0}
	}
	out.left--
}

// unsegmentable reports whether err may be about a GSO batch: its datagrams are longer
// than the path allows, the device cannot give them checksums, or something on the path
// has to see each of them (IPsec).
func unsegmentable(err error) bool {
	return err == unix.EINVAL || err == unix.EMSGSIZE || err == unix.EIO || err == unix.EOPNOTSUPP
}

// pack makes headers for what has not gone, or for as much of it as there are headers.
func (out *outgoing) pack() []unix.Mmsghdr {
	n, vectors, least := 0, 0, 1
	if out.prefix != nil {
		least = 2
	}
	for at := out.next; at.message < out.n && n < slots && vectors+least <= slots; n++ {
		r := &out.runs[n]
		out.run(r, at, vectors)
		control, length := &out.from, out.fromLen
		if r.datagrams > 1 {
			control = &out.control[n]
			copy(control[:], out.from[:length])
			length += mmsg.PutSegmentSize(control[length:], r.size)
		}
		h := &out.header[n].Hdr
		h.Iov = &out.vector[vectors]
		h.SetIovlen(r.vectors)
		mmsg.Address(h, out.to, control, length)
		at = r.end
		vectors += r.vectors
	}
	return out.header[:n]
}

// run puts the datagrams that can go as one, from at on, into the vectors from the
// first-th on, and what they are into r. All are equally long, but for the last, which may
// be shorter. A GRO batch is cut only where it is too long alone.
func (out *outgoing) run(r *run, at place, first int) {
	m := &out.message[at.message]
	size := min(m.segment, len(m.data)-at.offset)
	most := maxBatch
	if out.plain || size == 0 {
		most = 1
	}
	*r = run{size: size, end: at}
	if out.prefix != nil {
		v := &out.vector[first]
		v.Base = unsafe.SliceData(out.prefix)
		v.SetLen(len(out.prefix))
		r.vectors = 1
	}
	for last := false; !last && r.datagrams < most && r.end.message < out.n && first+r.vectors < slots; r.vectors++ {
		m := &out.message[r.end.message]
		rest, n := m.data[r.end.offset:], 1
		if len(rest) > m.segment {
			n = datagrams(len(rest), m.segment)
		}
		if own := min(m.segment, len(rest)); own != size && (own > size || own == 0 || n > 1) {
			return
		}
		if n > most-r.datagrams || len(rest) > maxBatchBytes-r.bytes {
			if r.datagrams > 0 {
				return
			}
			n = min(n, most, max(1, maxBatchBytes/size)) // size is not 0: that is never too long
			rest = rest[:min(n*size, len(rest))]
		}
		v := &out.vector[first+r.vectors]
		v.Base = unsafe.SliceData(rest)
		v.SetLen(len(rest))
		r.datagrams += n
		r.bytes += len(rest)
		if r.end.offset += len(rest); r.end.offset == len(m.data) {
			r.end = place{r.end.message + 1, 0}
		}
		last = len(rest) < n*size
	}
}
