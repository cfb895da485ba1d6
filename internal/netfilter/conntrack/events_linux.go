package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// eventRoom is how many bytes of events wait at the most, for all who listen. The kernel takes some 1,000 for each.
const eventRoom = 8 << 20

// groups are the multicast groups of kinds (enum nfnetlink_groups).
var groups = [...]struct {
	kinds  Kinds
	number int
}{{New, 1}, {Update | Turn, 2}, {Destroy, 3}}

// memInfoDrops is SK_MEMINFO_DROPS of linux/sock_diag.h.
const memInfoDrops = 8

type events struct {
	file    *os.File
	handled atomic.Uint64
	ended   chan struct{}

	mu     sync.Mutex // guards the following
	joined [len(groups)]bool
	closed EventStats
}

func (e *events) listen(handle func(*Event)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	e.file, e.ended = os.NewFile(uintptr(fd), "conntrack events"), make(chan struct{})
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, eventRoom),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	if err != nil {
		_ = e.file.Close()
		return fmt.Errorf("subscribe to conntrack: %w", err)
	}
	go e.serve(handle)
	return nil
}

func (e *events) want(wants []Want) error {
	kinds := Kinds(0)
	for _, w := range wants {
		kinds |= w.Kinds
	}
	filter := anyOf(wants)
	program := &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.control(func(fd int) error {
		err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, program)
		if err != nil {
			return err
		}
		return e.joinLocked(fd, kinds)
	})
	if err != nil {
		return fmt.Errorf("subscribe to conntrack: %w", err)
	}
	return nil
}

// joinLocked joins the groups of some kinds, and leaves the others. The kernel counts who joins a group, also if it is
// in the group already.
func (e *events) joinLocked(fd int, kinds Kinds) (err error) {
	for i, g := range &groups {
		option, wanted := unix.NETLINK_ADD_MEMBERSHIP, kinds&g.kinds != 0
		if wanted == e.joined[i] {
			continue
		}
		if !wanted {
			option = unix.NETLINK_DROP_MEMBERSHIP
		}
		err2 := unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, g.number)
		e.joined[i], err = wanted == (err2 == nil), errors.Join(err, err2)
	}
	return err
}

// control calls f with the socket, unless it is closed.
func (e *events) control(f func(fd int) error) error {
	conn, err := e.file.SyscallConn()
	if err != nil {
		return err
	}
	return errors.Join(conn.Control(func(fd uintptr) { err = f(int(fd)) }), err)
}

func (e *events) stats() EventStats {
	var info [4 * (memInfoDrops + 1)]byte
	err := e.control(func(fd int) error { return netfilter.Getsockopt(fd, unix.SOL_SOCKET, unix.SO_MEMINFO, info[:]) })
	if err != nil { // it is closed
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.closed
	}
	return EventStats{e.handled.Load(), uint64(binary.NativeEndian.Uint32(info[4*memInfoDrops:]))}
}

// serve reads one event after the other: the kernel sends each on its own.
func (e *events) serve(handle func(*Event)) {
	defer close(e.ended)
	buffer, event, attrs := make([]byte, 1<<14), new(Event), nfnl.Parse(nil)
	for {
		n, err := e.file.Read(buffer)
		switch {
		case errors.Is(err, syscall.ENOBUFS): // some are lost, which the kernel counts
			*event = Event{Kind: Lost}
			handle(event)
		case err != nil:
			return
		case event.parse(buffer[:n], attrs):
			e.handled.Add(1)
			handle(event)
		}
	}
}

// parse reads a message of the kernel, and reports whether it is an event.
func (e *Event) parse(m []byte, attrs nfnl.Value) bool {
	if len(m) < unix.SizeofNlMsghdr+nl.SizeofNfgenmsg {
		return false
	}
	kind, flags := binary.NativeEndian.Uint16(m[4:]), binary.NativeEndian.Uint16(m[6:])
	switch kind {
	case unix.NFNL_SUBSYS_CTNETLINK<<8 | nl.IPCTNL_MSG_CT_NEW:
		e.Kind = Update
		if flags&unix.NLM_F_CREATE != 0 {
			e.Kind = New
		}
	case unix.NFNL_SUBSYS_CTNETLINK<<8 | nl.IPCTNL_MSG_CT_DELETE:
		e.Kind = Destroy
	default:
		return false
	}
	e.Entry = parseEntry(attrs.Next(m[unix.SizeofNlMsghdr+nl.SizeofNfgenmsg:]))
	return true
}

func (e *events) close() error {
	closed := e.stats()
	e.mu.Lock()
	e.closed = closed
	e.mu.Unlock()
	err := e.file.Close()
	<-e.ended
	return err
}
