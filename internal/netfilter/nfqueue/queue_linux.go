package nfqueue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// Messages and attributes of linux/netfilter/nfnetlink_queue.h.
const (
	subsystem = 3 // NFNL_SUBSYS_QUEUE

	msgPacket  = 0
	msgVerdict = 1
	msgConfig  = 2

	attrHeader  = 1 // NFQA_PACKET_HDR
	attrVerdict = 2 // NFQA_VERDICT_HDR
	attrMark    = 3 // NFQA_MARK
	attrPayload = 10

	configCommand = 1 // NFQA_CFG_CMD
	configParams  = 2
	configLength  = 3
	configMask    = 4
	configFlags   = 5

	bind        = 1 // NFQNL_CFG_CMD_BIND
	copyPacket  = 2 // NFQNL_COPY_PACKET
	failOpen    = 1
	anySize     = 4 // NFQA_CFG_F_GSO: not cut to pieces for us
	headerBytes = unix.SizeofNlMsghdr + nl.SizeofNfgenmsg
)

const (
	// room is what bounds a queue: the bytes of its socket's buffer. The kernel counts each packet with some 800, and
	// twice as many as are asked for, so that some 600 wait: 8 ms for a process that takes 12 us for one, and less than
	// 50 where it has a sixth of a core.
	room = 1 << 18

	// length is how many packets the kernel would keep for us: out of reach, since what is over it is not counted.
	length = 1 << 14

	// atOnce is how many packets are decided before their verdicts are sent.
	atOnce = 64

	// Packets that come less than often apart are gathered for this long, as network cards do it: waking a thread for
	// each packet costs more than deciding it (bench/results/inside.md). The kernel adds up to 50 us
	// (PR_SET_TIMERSLACK of prctl(2)).
	gathering = 50 * time.Microsecond
	often     = 10 * gathering
)

// queue is one of the queues. It is used by one goroutine, but for its counters.
type queue struct {
	number uint16
	file   *os.File
	conn   syscall.RawConn
	ended  chan struct{}
	decide func(*Packet) Verdict
	took   func(packets int, d time.Duration) // nil: it is not measured

	packet   Packet
	last     uint32 // number of the packet read last
	message  []byte
	verdicts []byte
	errno    error // of the last read or write

	recent recent
	since  time.Time // when it was opened
	now    when

	closing atomic.Bool

	packets, odd, missed atomic.Uint64
}

func open(number uint16, decide func(*Packet) Verdict, took func(int, time.Duration)) (*queue, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	q := &queue{
		number: number, file: os.NewFile(uintptr(fd), "nfnetlink_queue"), ended: make(chan struct{}),
		decide: decide, took: took, since: time.Now(), recent: recent{seed: maphash.MakeSeed()},
		message: make([]byte, 1<<12), verdicts: make([]byte, 0, atOnce*verdictBytes),
	}
	q.conn, err = q.file.SyscallConn()
	err = errors.Join(err,
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, room),
		// Packets that had no room are counted by their numbers.
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_NO_ENOBUFS, 1),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	if err == nil {
		err = q.configure(fd)
	}
	if err != nil {
		_ = q.file.Close()
		return nil, fmt.Errorf("bind queue %d: %w", number, err)
	}
	go q.run(fd)
	return q, nil
}

// configure asks for the queue's packets, by one message: the kernel drops what comes to a queue that is bound and has
// no mode of copying yet. It is answered before write returns.
func (q *queue) configure(fd int) error {
	u32 := func(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
	attrs := nfnl.Attr(nil, configCommand, []byte{bind, 0, 0, 0})
	attrs = nfnl.Attr(attrs, configParams, append(u32(headers), copyPacket))
	attrs = nfnl.Attr(attrs, configLength, u32(length))
	attrs = nfnl.Attr(nfnl.Attr(attrs, configFlags, u32(failOpen|anySize)), configMask, u32(failOpen|anySize))
	msg := appendHeader(nil, msgConfig, unix.NLM_F_REQUEST|unix.NLM_F_ACK, q.number, len(attrs))
	if _, err := unix.Write(fd, append(msg, attrs...)); err != nil {
		return os.NewSyscallError("write", err)
	}
	return q.answer(fd)
}

// answer reads up to the kernel's answer. A packet may come before: it is decided.
func (q *queue) answer(fd int) error {
	for {
		n, err := unix.Read(fd, q.message)
		if err != nil {
			return os.NewSyscallError("read", err)
		}
		msgs, err := syscall.ParseNetlinkMessage(q.message[:n])
		if err != nil {
			return err
		}
		for _, m := range msgs {
			if m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4 {
				if errno := -int32(binary.NativeEndian.Uint32(m.Data)); errno != 0 {
					return syscall.Errno(errno)
				}
				return nil
			}
		}
		q.take(q.message[:n])
		q.send(fd)
	}
}

// run decides packets until close, and what is there then. After an error of the socket it lets go of the queue, so
// that rules decide, and no packet waits for it.
//
// It sleeps in a system call of its own, with a thread, and not in Go's poller: that wakes another thread first, which
// costs a packet up to 10 us (bench/results/inside.md).
func (q *queue) run(fd int) {
	defer close(q.ended)
	for fast := false; q.errno == nil && !q.closing.Load(); {
		if q.several(fd, false) || fast && q.gathered(fd) {
			continue
		}
		since := time.Now()
		q.several(fd, true)
		fast = time.Since(since) < often
	}
	for q.errno == nil && q.several(fd, false) {
		continue
	}
	if q.errno != nil {
		_ = q.file.Close()
	}
}

// gathered lets packets come together, decides them, and reports whether there was any.
func (q *queue) gathered(fd int) bool {
	d := unix.NsecToTimespec(int64(gathering))
	_ = unix.Nanosleep(&d, nil) // a signal may end it sooner
	return q.several(fd, false)
}

// several decides what there is, up to atOnce packets, after it has waited for the first, or not, and reports whether
// there was anything.
func (q *queue) several(fd int, wait bool) bool {
	var begun time.Time
	before := q.packets.Load()
	any, empty := false, false
	for range atOnce {
		n, errno := q.read(fd, wait)
		if errno == syscall.EAGAIN {
			empty = true
			break
		}
		if errno == syscall.EINTR || errno == syscall.ENOBUFS {
			continue
		}
		if errno != 0 {
			q.errno = errno
			return true
		}
		if !any {
			begun = time.Now()
			q.now.at = begun.Sub(q.since)
		}
		any, wait = true, false
		q.take(q.message[:n])
	}
	q.send(fd)
	if empty {
		q.now.drained++
	}
	if n := int(q.packets.Load() - before); n > 0 && q.took != nil {
		q.took(n, time.Since(begun))
	}
	return any
}

// read reads one message. What does not wait takes no way through Go's scheduler.
func (q *queue) read(fd int, wait bool) (n int, errno syscall.Errno) {
	var got uintptr
	if wait {
		got, _, errno = unix.Syscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&q.message[0])),
			uintptr(len(q.message)), 0, 0, 0)
	} else {
		got, _, errno = unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&q.message[0])),
			uintptr(len(q.message)), unix.MSG_DONTWAIT, 0, 0)
	}
	return int(got), errno
}

// take decides the packets of one read.
func (q *queue) take(b []byte) {
	for len(b) >= headerBytes {
		size := int(binary.NativeEndian.Uint32(b))
		if size < headerBytes || size > len(b) {
			return
		}
		if binary.NativeEndian.Uint16(b[4:]) == subsystem<<8|msgPacket { // an error says that a packet has gone
			q.judge(b[headerBytes:size])
		}
		b = b[min(len(b), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
}

// judge appends the verdict of one packet. One that hides its ports is dropped: with it a client would pass its limits.
func (q *queue) judge(attrs []byte) {
	var payload []byte
	var id, mark uint32
	for len(attrs) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(attrs))
		if size < unix.SizeofNlAttr || size > len(attrs) {
			break
		}
		value := attrs[unix.SizeofNlAttr:size]
		switch kind := binary.NativeEndian.Uint16(attrs[2:]) & nl.NLA_TYPE_MASK; {
		case kind == attrHeader && len(value) >= 4:
			id = binary.BigEndian.Uint32(value)
		case kind == attrMark && len(value) >= 4:
			mark = binary.BigEndian.Uint32(value)
		case kind == attrPayload:
			payload = value
		}
		attrs = attrs[min(len(attrs), (size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
	}
	q.packets.Add(1)
	q.missed.Add(uint64(id - q.last - 1))
	q.last = id
	q.packet.Mark = mark
	v := Verdict{Action: Drop}
	if q.packet.parse(payload) {
		v = q.again()
	} else {
		q.odd.Add(1)
	}
	q.verdicts = appendVerdict(q.verdicts, q.number, id, v)
}

// again decides about the packet, or as before if its flow is being decided.
func (q *queue) again() Verdict {
	f, known := q.recent.find(q.packet.flow(), q.now)
	if !known {
		f.verdict = q.decide(&q.packet)
	}
	return f.verdict
}

// send sends the verdicts that there are. Each is a message of its own, since they differ in their marks.
func (q *queue) send(fd int) {
	if len(q.verdicts) == 0 {
		return
	}
	if _, err := unix.Write(fd, q.verdicts); err != nil {
		q.errno = err
	}
	q.verdicts = q.verdicts[:0]
}

const verdictBytes = headerBytes + 12 + 8

func appendVerdict(b []byte, queue uint16, id uint32, v Verdict) []byte {
	b = appendHeader(b, msgVerdict, unix.NLM_F_REQUEST, queue, verdictBytes-headerBytes)
	b = appendAttr(b, attrVerdict, 8)
	b = binary.BigEndian.AppendUint32(b, uint32(v.Action))
	b = binary.BigEndian.AppendUint32(b, id)
	b = appendAttr(b, attrMark, 4)
	return binary.BigEndian.AppendUint32(b, v.Mark)
}

func appendAttr(b []byte, kind uint16, size int) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+size))
	return binary.NativeEndian.AppendUint16(b, kind)
}

// appendHeader appends what comes before attributes (struct nlmsghdr, struct nfgenmsg).
func appendHeader(b []byte, kind, flags, queue uint16, attrs int) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(headerBytes+attrs))
	b = binary.NativeEndian.AppendUint16(b, subsystem<<8|kind)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	b = append(b, unix.NFPROTO_UNSPEC, nl.NFNETLINK_V0)
	return binary.BigEndian.AppendUint16(b, queue)
}

// close has the kernel keep no more packets, decides those that there are, and ends. The kernel's answer wakes who
// reads; if it finds no room, there are packets to read, and so no need to.
func (q *queue) close() error {
	select {
	case <-q.ended:
		return q.errno
	default:
	}
	none := nfnl.Attr(nil, configLength, make([]byte, 4))
	q.closing.Store(true)
	msg := append(appendHeader(nil, msgConfig, unix.NLM_F_REQUEST|unix.NLM_F_ACK, q.number, len(none)), none...)
	var full error
	err := q.conn.Control(func(fd uintptr) { _, full = unix.Write(int(fd), msg) })
	if err = errors.Join(err, full); err == nil {
		<-q.ended
	}
	return errors.Join(err, q.errno, q.file.Close())
}
