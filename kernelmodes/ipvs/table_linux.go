package ipvs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
	"github.com/sluice-lb/sluice/lb"
)

// Commands and attributes of ipvs (include/uapi/linux/ip_vs.h), as far as we send them
// ourselves.
const (
	newService, setService, deleteService = 1, 2, 3
	newDest, setDest, deleteDest          = 5, 6, 7

	attrService, attrDest = 1, 2

	serviceFamily, serviceProtocol, serviceAddr, servicePort, serviceMark = 1, 2, 3, 4, 5
	serviceScheduler, serviceFlags, serviceTimeout, serviceNetmask        = 6, 7, 8, 9

	destAddr, destPort, destMethod, destWeight, destUpper, destLower = 1, 2, 3, 4, 5, 6
)

// messagesInBatch is such that, should the kernel refuse every one and one more, its
// answers are less than what a socket holds.
const messagesInBatch = 64

// held is a virtual server of ours as the kernel has it.
type held struct {
	server                         // its backends are in weights
	weights map[netip.AddrPort]int // of real servers; those that drain have 0
	address netip.Addr             // that our routes make the node's while it is there; invalid: none
}

// table speaks with ipvs, in one address family: it reads by the library, and writes by batches
// of its own, many changes of virtual and real servers in two system calls. The kernel handles
// the messages of one buffer in order, and answers those it refuses, and the last.
type table struct {
	*ipvs.Handle // nil until connected
	ipv6         bool
	writes       *uint64 // counts messages

	fd      int
	number  uint16 // that the kernel has given ipvs
	buffer  []byte
	last    int                   // where the last message begins in the buffer
	waiting []func(syscall.Errno) // to call with the answers to the messages
	errs    []error
}

// open opens the kernel's table of virtual servers, and counts what it writes there.
// The caller closes it.
func open(ipv6 bool, writes *uint64) (*table, error) {
	t := &table{ipv6: ipv6, writes: writes}
	return t, t.connect()
}

// connect opens the table's sockets if they are not open. Who has nothing to say needs none.
func (t *table) connect() error {
	if t.Handle != nil {
		return nil
	}
	f, err := netlink.GenlFamilyGet("IPVS")
	if err != nil {
		return fmt.Errorf("%w: the kernel has no ip_vs: %w", errors.ErrUnsupported, err)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	if err != nil {
		return fmt.Errorf("open socket to ipvs: %w", err)
	}
	h, err := ipvs.New("")
	if err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("open ipvs: %w", err)
	}
	t.Handle, t.fd, t.number = h, fd, f.ID
	return nil
}

// Close closes the table.
func (t *table) Close() {
	if t.Handle != nil {
		t.Handle.Close()
		_ = unix.Close(t.fd)
	}
}

func (t *table) family() uint16 { return uint16(nfnl.Family(t.ipv6)) }

func (k key) String() string {
	if k.mark != 0 {
		return fmt.Sprintf("mark %#x", k.mark)
	}
	return k.Frontend.String()
}

// read returns the virtual servers of the family for which ours is true.
func (t *table) read(ours func(key) bool) (map[key]*held, error) {
	all, err := t.GetServices()
	if err != nil {
		return nil, fmt.Errorf("list virtual servers: %w", err)
	}
	out := make(map[key]*held, len(all))
	for _, s := range all {
		k := keyOf(s)
		if s.AddressFamily != t.family() || !ours(k) {
			continue
		}
		backends, err := t.backends(k)
		if err != nil {
			return nil, err
		}
		h := &held{weights: make(map[netip.AddrPort]int, len(backends))}
		h.server = server{
			scheduler: s.SchedName, flags: s.Flags &^ flagHashed, timeout: s.Timeout, udp: k.Protocol == lb.UDP,
		}
		for a, b := range backends {
			h.weights[a] = b.weight
		}
		out[k] = h
	}
	return out, nil
}

// realServer is one as the kernel has it.
type realServer struct {
	weight int
	busy   bool // it has connections
}

// backends returns the real servers of a virtual one, none if that is not there.
func (t *table) backends(k key) (map[netip.AddrPort]realServer, error) {
	s := &ipvs.Service{AddressFamily: t.family(), FWMark: k.mark}
	if k.mark == 0 {
		s.Protocol = uint16(netfilter.ProtocolNumber(k.Protocol))
		s.Address, s.Port = k.Addr.Addr().AsSlice(), k.Addr.Port()
	}
	list, err := t.GetDestinations(s)
	if errors.Is(err, syscall.ESRCH) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("list real servers of %s: %w", k, err)
	}
	out := make(map[netip.AddrPort]realServer, len(list))
	for _, d := range list {
		if ip, ok := netip.AddrFromSlice(d.Address); ok {
			// Inactive connections are closing, which may take as long as one side still sends.
			busy := d.ActiveConnections+d.InactiveConnections > 0
			out[netip.AddrPortFrom(ip.Unmap(), d.Port)] = realServer{d.Weight, busy}
		}
	}
	return out, nil
}

// noScheduler is the error of a virtual server whose scheduler the kernel lacks.
type noScheduler struct{ name string }

func (e noScheduler) Error() string { return fmt.Sprintf("the kernel has no scheduler %s", e.name) }

// put makes a virtual server, or changes one that is there, and calls done when it is so.
func (t *table) put(k key, s server, isThere bool, done func()) {
	command, verb := uint8(newService), "make"
	if isThere {
		command, verb = setService, "change"
	}
	flags := binary.NativeEndian.AppendUint32(u32(s.flags), ^uint32(0)) // and which of them count
	netmask := ^uint32(0)                                               // each client for itself
	if t.ipv6 {
		netmask = 128 // as a length
	}
	b := nfnl.AttrString(t.name(k), serviceScheduler, s.scheduler)
	b = nfnl.Attr(b, serviceFlags, flags)
	b = nfnl.Attr(b, serviceTimeout, u32(s.timeout))
	b = nfnl.Attr(b, serviceNetmask, u32(netmask))
	t.queue(command, b, nil, func(errno syscall.Errno) {
		switch {
		case errno == 0:
			done()
		case errno == syscall.EEXIST && !isThere:
			t.put(k, s, true, done) // another program's until now
		case errno == syscall.ENOENT:
			t.errs = append(t.errs, noScheduler{s.scheduler})
		default:
			t.errs = append(t.errs, fmt.Errorf("%s virtual server %s: %w", verb, k, errno))
		}
	})
}

// remove removes a virtual server with its real ones, and calls done when it is gone.
func (t *table) remove(k key, done func()) {
	t.queue(deleteService, t.name(k), nil, func(errno syscall.Errno) {
		if errno != 0 && errno != syscall.ESRCH {
			t.errs = append(t.errs, fmt.Errorf("remove virtual server %s: %w", k, errno))
			return
		}
		done()
	})
}

// weigh gives a real server a weight, and makes it if it is not there.
func (t *table) weigh(k key, h *held, a netip.AddrPort, weight int) {
	was, isThere := h.weights[a]
	if isThere && was == weight {
		return
	}
	command, unless := uint8(newDest), syscall.EEXIST
	if isThere {
		command, unless = setDest, syscall.ENOENT
	}
	t.queue(command, t.name(k), destination(a, weight), func(errno syscall.Errno) {
		switch errno {
		case 0:
			h.weights[a] = weight
		case unless: // another program has made or removed it
			if delete(h.weights, a); !isThere {
				h.weights[a] = -1
			}
			t.weigh(k, h, a, weight)
		default:
			t.errs = append(t.errs, fmt.Errorf("set weight of %s at virtual server %s to %d: %w", a, k, weight, errno))
		}
	})
}

// removeBackend removes a real server.
func (t *table) removeBackend(k key, h *held, a netip.AddrPort) {
	t.queue(deleteDest, t.name(k), destination(a, 0), func(errno syscall.Errno) {
		if errno != 0 && errno != syscall.ENOENT && errno != syscall.ESRCH {
			t.errs = append(t.errs, fmt.Errorf("remove %s from virtual server %s: %w", a, k, errno))
			return
		}
		delete(h.weights, a)
	})
}

// name returns the attributes that say which virtual server a message is for.
func (t *table) name(k key) []byte {
	b := nfnl.Attr(make([]byte, 0, 96), serviceFamily, binary.NativeEndian.AppendUint16(nil, t.family()))
	if k.mark != 0 {
		return nfnl.Attr(b, serviceMark, u32(k.mark))
	}
	protocol := uint16(netfilter.ProtocolNumber(k.Protocol))
	b = nfnl.Attr(b, serviceProtocol, binary.NativeEndian.AppendUint16(nil, protocol))
	b = nfnl.Attr(b, serviceAddr, k.Addr.Addr().AsSlice())
	return nfnl.Attr(b, servicePort, binary.BigEndian.AppendUint16(nil, k.Addr.Port()))
}

func destination(a netip.AddrPort, weight int) []byte {
	b := nfnl.Attr(make([]byte, 0, 64), destAddr, a.Addr().AsSlice())
	b = nfnl.Attr(b, destPort, binary.BigEndian.AppendUint16(nil, a.Port()))
	b = nfnl.Attr(b, destMethod, u32(ipvs.ConnectionFlagMasq))
	b = nfnl.Attr(b, destWeight, u32(uint32(weight)))
	b = nfnl.Attr(b, destUpper, u32(0))
	return nfnl.Attr(b, destLower, u32(0))
}

func u32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// queue appends a message, about a virtual server and perhaps a real one.
func (t *table) queue(command uint8, service, dest []byte, answered func(syscall.Errno)) {
	// A new virtual server and its first backend come together.
	if n := len(t.waiting); n > messagesInBatch || n == messagesInBatch && command != newDest {
		t.send()
	}
	*t.writes++
	t.last = len(t.buffer)
	b := append(t.buffer, make([]byte, unix.SizeofNlMsghdr)...)
	b = append(b, command, 1, 0, 0) // struct genlmsghdr, with the version
	b = nfnl.Attr(b, attrService, service)
	if dest != nil {
		b = nfnl.Attr(b, attrDest, dest)
	}
	h := b[t.last:]
	binary.NativeEndian.PutUint32(h, uint32(len(h)))
	binary.NativeEndian.PutUint16(h[4:], t.number)
	binary.NativeEndian.PutUint16(h[6:], unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(h[8:], uint32(len(t.waiting))) // its number
	t.buffer, t.waiting = b, append(t.waiting, answered)
}

// flush sends what waits, and what follows from the answers. It returns the errors since the
// last flush.
func (t *table) flush() error {
	for len(t.waiting) > 0 {
		t.send()
	}
	err := errors.Join(t.errs...)
	t.errs = nil
	return err
}

// send sends the messages that wait, and reads the answers. Those queue further messages.
func (t *table) send() {
	waiting, b := t.waiting, t.buffer
	t.waiting, t.buffer = nil, make([]byte, 0, cap(b))
	if err := t.exchange(b, waiting); err != nil {
		t.errs = append(t.errs, err)
	}
}

func (t *table) exchange(b []byte, waiting []func(syscall.Errno)) error {
	binary.NativeEndian.PutUint16(b[t.last+6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	if err := unix.Sendto(t.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("write to ipvs: %w", err)
	}
	errnos := make([]syscall.Errno, len(waiting))
	var answers [4096]byte // one in each
	for last := false; !last; {
		n, _, err := unix.Recvfrom(t.fd, answers[:], unix.MSG_DONTWAIT) // they came before Sendto returned
		if err != nil {
			return fmt.Errorf("read the answer of ipvs: %w", err)
		}
		msgs, err := syscall.ParseNetlinkMessage(answers[:n])
		if err != nil {
			return fmt.Errorf("read the answer of ipvs: %w", err)
		}
		for _, m := range msgs {
			at := int(m.Header.Seq)
			if m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4 || at >= len(waiting) {
				return errors.New("ipvs sent an unexpected answer")
			}
			errnos[at] = syscall.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
			last = at == len(waiting)-1
		}
	}
	for i, answered := range waiting {
		answered(errnos[i])
	}
	return nil
}
