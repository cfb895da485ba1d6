package load

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// merge has a socket give datagrams that came together as one (UDP_GRO, udp(7)).
func merge(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1); err != nil {
		return fmt.Errorf("receive trains of datagrams (UDP_GRO): %w", err)
	}
	return nil
}

// merged moves trains of datagrams: one, or several in a row that are equally long but
// for the last.
type merged struct {
	header  unix.Msghdr
	vector  unix.Iovec
	name    unix.RawSockaddrInet4
	data    []byte
	control []byte
}

func newMerged() *merged {
	m := &merged{data: make([]byte, 1<<16), control: make([]byte, 64)}
	m.header.Iov = &m.vector
	m.header.SetIovlen(1)
	return m
}

// receive returns what came together and how long each datagram of it is; named says
// whether to learn from whom.
func (m *merged) receive(fd int, named bool) (p []byte, segment int, errno unix.Errno) {
	m.vector.Base = &m.data[0]
	m.vector.SetLen(len(m.data))
	m.header.Name, m.header.Namelen = nil, 0
	if named {
		m.header.Name, m.header.Namelen = (*byte)(unsafe.Pointer(&m.name)), unix.SizeofSockaddrInet4
	}
	m.header.Control = &m.control[0]
	m.header.SetControllen(len(m.control))
	n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.header)), unix.MSG_DONTWAIT)
	if errno != 0 {
		return nil, 0, errno
	}
	segment = int(n)
	if c := (*unix.Cmsghdr)(unsafe.Pointer(&m.control[0])); m.header.Controllen >= unix.SizeofCmsghdr &&
		c.Level == unix.SOL_UDP && c.Type == unix.UDP_GRO {
		segment = int(binary.NativeEndian.Uint32(m.control[unix.CmsgLen(0):]))
	}
	return m.data[:n], segment, 0
}

// reply sends what was received last back to where it came from, as it came.
func (m *merged) reply(fd int, p []byte, segment int) {
	m.vector.SetLen(len(p))
	m.header.Control = nil
	m.header.SetControllen(0)
	if segment < len(p) {
		m.header.Control = &m.control[0]
		m.header.SetControllen(putSegment(m.control, segment))
	}
	_, _, _ = unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.header)), unix.MSG_DONTWAIT)
}

// putSegment writes the control message that has what is sent leave as datagrams of size
// bytes (UDP_SEGMENT, udp(7)), and returns its length.
func putSegment(control []byte, size int) int {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(control[unix.CmsgLen(0):], uint16(size))
	return unix.CmsgSpace(2)
}
