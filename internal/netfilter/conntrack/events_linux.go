package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// eventRoom is how many bytes of events wait at the most. The kernel takes some 1,000 for each.
const eventRoom = 4 << 20

// groups are the multicast groups of the kinds (enum nfnetlink_groups).
var groups = map[Kinds]int{New: 1, Update: 2, Turn: 2, Destroy: 3}

// memInfoDrops is SK_MEMINFO_DROPS of linux/sock_diag.h.
const memInfoDrops = 8

type events struct {
	file    *os.File
	kinds   Kinds
	handled atomic.Uint64
	ended   chan struct{}

	mu     sync.Mutex // guards closed
	closed EventStats
}

func (e *events) listen(kinds Kinds, handle func(*Event)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	e.file, e.ended = os.NewFile(uintptr(fd), "conntrack events"), make(chan struct{})
	e.kinds = kinds
	err = errors.Join(e.only(nil), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, eventRoom),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	if err = errors.Join(err, e.join()); err != nil {
		_ = e.file.Close()
		return fmt.Errorf("subscribe to conntrack: %w", err)
	}
	go e.serve(handle)
	return nil
}

// join joins the groups of its kinds.
func (e *events) join() error {
	return e.control(func(fd int) (err error) {
		for kind, group := range groups {
			if e.kinds&kind != 0 {
				err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group))
			}
		}
		return err
	})
}

func (e *events) only(addrs []netip.Addr) error { return e.filter(destinations(addrs)) }

func (e *events) all() error { return e.filter(translated()) }

func (e *events) everything() error { return e.filter([]unix.SockFilter{pass}) }

// filter has the kernel pass what is of the kinds and passes a filter.
func (e *events) filter(filter []unix.SockFilter) error {
	if e.kinds&(Update|Turn) == Turn {
		filter = append(turns(), filter...)
	}
	program := &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return e.control(func(fd int) error {
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, program)
	})
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
			if *event = (Event{Kind: Lost}); e.kinds&Lost != 0 {
				handle(event)
			}
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
