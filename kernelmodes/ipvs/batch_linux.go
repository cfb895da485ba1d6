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
)

// Commands and attributes of ipvs (include/uapi/linux/ip_vs.h), as far as we send them
// ourselves.
const (
	newService, newDest = 1, 5

	attrService, attrDest = 1, 2

	serviceFamily, serviceProtocol, serviceAddr, servicePort, serviceMark = 1, 2, 3, 4, 5
	serviceScheduler, serviceFlags, serviceTimeout, serviceNetmask        = 6, 7, 8, 9

	destAddr, destPort, destMethod, destWeight, destUpper, destLower = 1, 2, 3, 4, 5, 6
)

// messagesInBatch is such that, should the kernel refuse every one and one more, its
// answers are less than what a socket holds.
const messagesInBatch = 64

// batch makes virtual and real servers, many with two system calls: the kernel handles the
// messages of one buffer in order, and answers those it refuses, and the last. What it
// refuses is no error here: to do it again alone finds out why.
type batch struct {
	table
	fd      int // -1 until used
	ipvs    uint16
	buffer  []byte
	last    int      // where the last message begins in the buffer
	waiting []func() // to call when a message has succeeded
	err     error    // the first
}

func (t table) newBatch() *batch { return &batch{table: t, fd: -1} }

// open makes the socket.
func (b *batch) open() error {
	f, err := netlink.GenlFamilyGet("IPVS")
	if err != nil {
		return fmt.Errorf("find ipvs: %w", err)
	}
	b.ipvs = f.ID
	b.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	if err != nil {
		b.fd = -1
		return fmt.Errorf("open socket to ipvs: %w", err)
	}
	return nil
}

// close sends what waits, and returns the first error.
func (b *batch) close() error {
	b.flush()
	if b.fd >= 0 {
		_ = unix.Close(b.fd)
	}
	return b.err
}

// service makes a virtual server; done is called when it is made.
func (b *batch) service(k key, s server, done func()) {
	if len(b.waiting) >= messagesInBatch {
		b.flush() // now, so that its first backend comes with it
	}
	b.begin(newService)
	b.nest(attrService, func() {
		b.name(k)
		x := b.table.service(k, s)
		b.attr(serviceScheduler, append([]byte(x.SchedName), 0))
		b.attr(serviceFlags, binary.NativeEndian.AppendUint32(number(x.Flags), ^uint32(0))) // and which of them count
		b.attr(serviceTimeout, number(x.Timeout))
		b.attr(serviceNetmask, number(x.Netmask))
	})
	b.end(done)
}

// backends makes real servers that a virtual one has not.
func (b *batch) backends(k key, list []netip.AddrPort, h *held) {
	for _, a := range list {
		if _, isThere := h.weights[a]; !isThere {
			if len(b.waiting) > messagesInBatch {
				b.flush()
			}
			b.backend(k, a, func() { h.weights[a] = 1 })
		}
	}
}

// backend makes a real server of weight 1; done is called when it is made.
func (b *batch) backend(k key, a netip.AddrPort, done func()) {
	b.begin(newDest)
	b.nest(attrService, func() { b.name(k) })
	b.nest(attrDest, func() {
		b.attr(destAddr, a.Addr().AsSlice())
		b.attr(destPort, binary.BigEndian.AppendUint16(nil, a.Port()))
		b.attr(destMethod, number(ipvs.ConnectionFlagMasq))
		b.attr(destWeight, number(1))
		b.attr(destUpper, number(0))
		b.attr(destLower, number(0))
	})
	b.end(done)
}

// name adds which virtual server a message is for.
func (b *batch) name(k key) {
	b.attr(serviceFamily, binary.NativeEndian.AppendUint16(nil, b.family()))
	if k.mark != 0 {
		b.attr(serviceMark, number(k.mark))
		return
	}
	b.attr(serviceProtocol, binary.NativeEndian.AppendUint16(nil, uint16(ipProtocols[k.protocol])))
	b.attr(serviceAddr, k.addr.Addr().AsSlice())
	b.attr(servicePort, binary.BigEndian.AppendUint16(nil, k.addr.Port()))
}

func number(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func (b *batch) attr(kind uint16, value []byte) {
	b.nest(kind, func() { b.buffer = append(b.buffer, value...) })
}

// nest writes an attribute of what inner writes, aligned to four bytes (netlink(7)).
func (b *batch) nest(kind uint16, inner func()) {
	at := len(b.buffer)
	b.buffer = append(b.buffer, make([]byte, unix.SizeofNlAttr)...)
	inner()
	binary.NativeEndian.PutUint16(b.buffer[at:], uint16(len(b.buffer)-at))
	binary.NativeEndian.PutUint16(b.buffer[at+2:], kind)
	for len(b.buffer)%unix.NLA_ALIGNTO != 0 {
		b.buffer = append(b.buffer, 0)
	}
}

// begin writes the headers of a message.
func (b *batch) begin(command uint8) {
	b.last = len(b.buffer)
	b.buffer = append(b.buffer, make([]byte, unix.SizeofNlMsghdr)...)
	b.buffer = append(b.buffer, command, 1, 0, 0) // struct genlmsghdr, with the version
}

func (b *batch) end(done func()) {
	h := b.buffer[b.last:]
	binary.NativeEndian.PutUint32(h, uint32(len(h)))
	binary.NativeEndian.PutUint16(h[6:], unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(h[8:], uint32(len(b.waiting))) // its number
	b.waiting = append(b.waiting, done)
}

// flush sends the messages that wait.
func (b *batch) flush() {
	if len(b.waiting) == 0 {
		return
	}
	if b.err == nil && b.fd < 0 {
		b.err = b.open()
	}
	if b.err == nil {
		b.err = b.send()
	}
	b.buffer, b.waiting = b.buffer[:0], b.waiting[:0]
}

func (b *batch) send() error {
	*b.writes += uint64(len(b.waiting))
	for at := 0; at < len(b.buffer); at += int(binary.NativeEndian.Uint32(b.buffer[at:])) {
		binary.NativeEndian.PutUint16(b.buffer[at+4:], b.ipvs)
	}
	binary.NativeEndian.PutUint16(b.buffer[b.last+6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	if err := unix.Sendto(b.fd, b.buffer, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("write to ipvs: %w", err)
	}
	var answers [4096]byte // one in each
	for next := 0; next < len(b.waiting); {
		n, _, err := unix.Recvfrom(b.fd, answers[:], unix.MSG_DONTWAIT) // they came before Sendto returned
		if err != nil {
			return fmt.Errorf("read the answer of ipvs: %w", err)
		}
		msgs, err := syscall.ParseNetlinkMessage(answers[:n])
		if err != nil {
			return fmt.Errorf("read the answer of ipvs: %w", err)
		}
		for _, m := range msgs {
			at := int(m.Header.Seq)
			if m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4 || at < next || at >= len(b.waiting) {
				return errors.New("ipvs sent an unexpected answer")
			}
			for ; next < at; next++ {
				b.waiting[next]()
			}
			if next++; binary.NativeEndian.Uint32(m.Data) == 0 {
				b.waiting[at]()
			}
		}
	}
	return nil
}
