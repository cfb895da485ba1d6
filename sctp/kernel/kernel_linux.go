package kernel

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/mmsg"
	"github.com/sluice-lb/sluice/internal/socket"
)

// Options and values of the kernel's SCTP (RFC 6458; linux/sctp.h).
const (
	optInitMsg        = 2
	optNoDelay        = 3
	optPeerAddrParams = 9
	optEvents         = 11
	optStatus         = 14
	optRecvRcvInfo    = 32

	cmsgSndInfo = 2
	cmsgRcvInfo = 3

	FlagUnordered    = 1
	FlagAbort        = 4 // of snd_flags: there is no message, the association ends
	flagHBEnable     = 1
	flagHBDisable    = 2
	flagNotification = 0x8000 // of msg_flags

	notePartialDelivery = 1<<15 + 6
	noteAssocChange     = 1<<15 + 1

	ChangeLost     = 1 // sac_state of an association that has ended otherwise
	ChangeRestart  = 2 // of one that the peer started again
	ChangeShutdown = 3 // of one that has ended by SHUTDOWN

	StatusEstablished = 4
)

// Info is what stays with a user message: sctp_rcvinfo and sctp_sndinfo without
// what belongs to one association only.
type Info struct {
	Stream uint16
	Flags  uint16 // FlagUnordered or none
	PPID   uint32 // in the sender's byte order, which does not matter here
}

// Status is the part of sctp_status that is of use.
type Status struct {
	State   int32
	In, Out uint16 // streams
}

// GetStatus reads the state of a socket's association. An error means that
// there is none, or that it is not established yet.
func GetStatus(fd int) (s Status, err error) {
	var raw [176]byte // sctp_status
	size := uint32(len(raw))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_SCTP, optStatus,
		uintptr(unsafe.Pointer(&raw[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return s, errno
	}
	s.State = int32(binary.NativeEndian.Uint32(raw[4:]))
	s.In, s.Out = binary.NativeEndian.Uint16(raw[16:]), binary.NativeEndian.Uint16(raw[18:])
	return s, nil
}

func setOption(fd, option int, value []byte) error {
	return unix.SetsockoptString(fd, unix.IPPROTO_SCTP, option, string(value)) // which adds no NUL
}

// SetStreams sets how many streams a socket's association asks for: out to send on
// and at most in to receive on. It is for before it is made.
func SetStreams(fd int, out, in uint16) error {
	var m [8]byte // sctp_initmsg; zeros leave the number and time of attempts alone
	binary.NativeEndian.PutUint16(m[:], out)
	binary.NativeEndian.PutUint16(m[2:], in)
	return setOption(fd, optInitMsg, m[:])
}

// SetHeartbeats enables heartbeats to one address of the peer, or to none of a
// socket's future associations.
func SetHeartbeats(fd int, peer netip.AddrPort) error {
	var p [156]byte // sctp_paddrparams, packed
	flags := uint32(flagHBDisable)
	if peer.IsValid() {
		flags = flagHBEnable
		var n socket.Name
		n.Set(peer)
		copy(p[4:], unsafe.Slice(n.Pointer(), n.Size()))
	}
	binary.NativeEndian.PutUint32(p[146:], flags)
	return setOption(fd, optPeerAddrParams, p[:])
}

// SetOptions sets what every relayed socket has: no Nagle delay, since what is
// passed on has been packed by its sender; what comes with a message; notifications of
// restarts and of messages that end in the middle; and room for a whole message,
// which the kernel takes at once or not at all.
func SetOptions(fd, message int) error {
	socket.SetSendBuffer(fd, message)
	events := []byte{1: 1, 6: 1, 7: 0} // sctp_event_subscribe: association, partial delivery
	one := binary.NativeEndian.AppendUint32(nil, 1)
	for _, o := range []struct {
		option int
		value  []byte
	}{{optNoDelay, one}, {optRecvRcvInfo, one}, {optEvents, events}} {
		if err := setOption(fd, o.option, o.value); err != nil {
			return err
		}
	}
	return nil
}

// Change returns the sac_state of a notification that an association has changed
// (RFC 6458 section 6.1.1).
func Change(b []byte) (state uint16, ok bool) {
	if len(b) < 10 || binary.NativeEndian.Uint16(b) != noteAssocChange {
		return 0, false
	}
	return binary.NativeEndian.Uint16(b[8:]), true
}

// Part is what one receive brought.
type Part struct {
	N            int // bytes
	Info         Info
	End          bool // of the message
	Notification bool
}

// Receive reads a message, or a part of one, into p. No bytes and no
// notification: the peer has shut down.
func Receive(fd int, p []byte) (got Part, err error) {
	var control [64]byte
	vector := unix.Iovec{Base: unsafe.SliceData(p)}
	vector.SetLen(len(p))
	h := unix.Msghdr{Iov: &vector, Control: &control[0]}
	h.SetIovlen(1)
	h.SetControllen(len(control))
	for {
		n, _, errno := unix.Syscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&h)), unix.MSG_DONTWAIT)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return got, errno
		}
		got.N = int(n)
		break
	}
	got.End = h.Flags&unix.MSG_EOR != 0
	got.Notification = h.Flags&flagNotification != 0
	received := mmsg.Control(control[:min(len(control), int(h.Controllen))])
	if v := received.Find(unix.IPPROTO_SCTP, cmsgRcvInfo, 12); v != nil {
		got.Info.Stream = binary.NativeEndian.Uint16(v)
		got.Info.Flags = binary.NativeEndian.Uint16(v[4:]) & FlagUnordered
		got.Info.PPID = binary.NativeEndian.Uint32(v[8:])
	}
	return got, nil
}

// Send writes a whole message, or nothing. With FlagAbort it aborts instead.
func Send(fd int, p []byte, i Info) error {
	var control [48]byte
	v, length := mmsg.Put(control[:], unix.IPPROTO_SCTP, cmsgSndInfo, 16)
	binary.NativeEndian.PutUint16(v[0:], i.Stream)
	binary.NativeEndian.PutUint16(v[2:], i.Flags)
	binary.NativeEndian.PutUint32(v[4:], i.PPID)
	vector := unix.Iovec{Base: unsafe.SliceData(p)}
	vector.SetLen(len(p))
	h := unix.Msghdr{Iov: &vector, Control: &control[0]}
	h.SetIovlen(1)
	h.SetControllen(length)
	for {
		_, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&h)),
			unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

// PartialDeliveryEnded reports whether a notification says that the rest of a message will not come.
func PartialDeliveryEnded(b []byte) bool {
	return len(b) >= 2 && binary.NativeEndian.Uint16(b) == notePartialDelivery
}

// Missing returns why the kernel has no SCTP, or nil. The call loads the module if there is one
// (inet_create).
func Missing() error {
	fd, err := socket.New(netip.IPv4Unspecified(), unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}
