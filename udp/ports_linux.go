package udp

import (
	"encoding/binary"
	"hash/maphash"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/socket"
)

// ports knows of each local port, of IPv4 and of IPv6, to which backends flows send from it. A flow has a port to
// itself, as the kernel chooses one that no socket has. But a flow that is resumed may find its port with another: it
// shares it, unless both have the same backend. The kernel tells connected sockets apart by both ends (SO_REUSEADDR,
// socket(7); Linux __udp4_lib_lookup), and would give all answers of one backend to one of them.
//
// Each entry has two places of 32 bits, each with the hash of a backend, and the descriptor of the flow that had the
// port first: only when another is to share it are both made to, which most flows never are. All shards use them,
// without a lock.
type ports struct {
	seed    maphash.Seed
	entries [2][1 << 16]atomic.Uint64
	owners  [2][1 << 16]atomic.Int32 // they may have been closed since
}

// portPlace is a flow's place in an entry.
type portPlace struct {
	bits  uint64 // what it has of the entry; 0: it has no place
	entry *atomic.Uint64
}

const lowPlace = uint64(1)<<32 - 1

func newPorts() *ports { return &ports{seed: maphash.MakeSeed()} }

// take takes a place at a port for a flow to a backend: beside another, or where there may be none. False: the other
// flow has the same backend, or there are two, or none.
func (p *ports) take(fd int, port uint16, backend netip.AddrPort, beside bool) (portPlace, bool) {
	family := familyOf(backend)
	entry := &p.entries[family][port]
	low := p.hash(backend)&lowPlace | 1
	for {
		have, bits := entry.Load(), low
		switch {
		case have == 0 && beside, have&lowPlace == low, have>>32 == low:
			return portPlace{}, false
		case have&lowPlace == 0:
			if have == 0 {
				p.owners[family][port].Store(int32(fd))
			}
		case have>>32 == 0:
			bits = low << 32
		default:
			return portPlace{}, false
		}
		if entry.CompareAndSwap(have, have|bits) {
			return portPlace{bits, entry}, true
		}
	}
}

// share has the flow that had a port first let another have it, too.
func (p *ports) share(port uint16, backend netip.AddrPort) {
	fd := int(p.owners[familyOf(backend)][port].Load())
	if at, err := socket.Local(fd); err == nil && at.Port() == port { // else it has gone
		_ = reuse(fd, 1)
	}
}

// familyOf returns where a family is in arrays.
func familyOf(backend netip.AddrPort) int {
	if backend.Addr().Is6() {
		return 1
	}
	return 0
}

func (p *ports) hash(backend netip.AddrPort) uint64 {
	var key [18]byte
	addr := backend.Addr().As16()
	binary.NativeEndian.PutUint16(key[copy(key[:], addr[:]):], backend.Port())
	return maphash.Bytes(p.seed, key[:])
}

// free gives the place back, if there is one: before the socket gives the port back.
func (p *portPlace) free() {
	if p.bits != 0 {
		p.entry.And(^p.bits)
		*p = portPlace{}
	}
}

// reuse lets other sockets of this kind have the port of fd as well, or fd have theirs.
func reuse(fd int, on int) error {
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, on)
}

// rebind gives a flow's new socket the port that the flow had before, if it can be had.
func (l *loopTransport) rebind(f *flow, backend netip.AddrPort) (ok bool) {
	at := netip.AddrPortFrom(unspecified(backend.Addr()), f.port)
	if socket.Bind(f.fd, at) == nil {
		return true
	}
	if f.place, ok = l.ports.take(f.fd, f.port, backend, true); !ok {
		return false
	}
	l.ports.share(f.port, backend)
	if reuse(f.fd, 1) == nil && socket.Bind(f.fd, at) == nil {
		return true
	}
	f.place.free()
	_ = reuse(f.fd, 0) // else the kernel might choose a port that another socket has
	return false
}

// connect keeps the descriptor, and with it the answers that wait in it.
func (l *loopTransport) connect(f *flow, to netip.AddrPort, now int64) error {
	if f.attempts > 0 {
		f.place.free()
		_ = reuse(f.fd, 0)
		socket.Disconnect(f.fd)
	}
	if err := socket.Connect(f.fd, to); err != nil {
		return err
	}
	at, err := socket.Local(f.fd)
	if err == nil && at == to { // no process listens there, and the kernel has chosen this port
		socket.Disconnect(f.fd)
		return unix.ECONNREFUSED
	}
	if err == nil && f.place.bits == 0 {
		var ok bool
		if f.place, ok = l.ports.take(f.fd, at.Port(), to, false); !ok { // it kept its port, which another has
			socket.Disconnect(f.fd)
			return errPortTaken
		}
	}
	if err == nil {
		f.port, f.trial = at.Port(), now+trial
	}
	return err
}
