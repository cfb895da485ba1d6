package conntrack

import (
	"net/netip"
	"time"

	"github.com/sluice-lb/sluice/lb"
)

// Flow is an entry of conntrack's, with ends as packets had them.
type Flow struct {
	Src, Dst netip.AddrPort // of the first packet
	Replies  netip.AddrPort // where replies come from
}

// Entry is all that is read of an entry.
type Entry struct {
	Flow
	Protocol lb.Protocol // zero if it is none of lb's
	ID       uint32      // of the entry, while it is there
	Status   Status
	State    State // of a TCP connection or an SCTP association; 0: not said
	Mark     uint32

	// What the client and the endpoint have sent. Zero unless the kernel counts it
	// (net.netfilter.nf_conntrack_acct when the entry was made).
	In, Out Count

	// When the entry was made, and when it ended. Zero unless the kernel notes it
	// (net.netfilter.nf_conntrack_timestamp when the entry was made).
	Begun, Ended time.Time

	// Left is how long the entry would have lived on without a packet, in whole seconds.
	Left time.Duration
}

// Count is what one end has sent, with the headers of IP.
type Count struct{ Packets, Bytes uint64 }

// Counted reports whether the kernel has counted: the first packet is there at once.
func (e *Entry) Counted() bool { return e.In.Packets > 0 }

// Answered reports whether both ends have sent packets.
func (e *Entry) Answered() bool { return e.Status&SeenReply != 0 }

// Translated reports whether netfilter has translated the destination. A translation by ipvs does not show.
func (e *Entry) Translated() bool { return e.Status&DstTranslated != 0 }

// Status has bits of an entry (IPS_* of linux/netfilter/nf_conntrack_common.h).
type Status uint32

// Bits of Status.
const (
	SeenReply     Status = 1 << 1 // there were packets of both ends
	Assured       Status = 1 << 2 // the connection was established; of UDP: it is no mere question
	SrcTranslated Status = 1 << 4
	DstTranslated Status = 1 << 5
	Dying         Status = 1 << 9
)

// State is the state of a TCP connection or of an SCTP association, by the packets of both ends
// (enum tcp_conntrack, enum sctp_conntrack).
type State uint8

// States of TCP.
const (
	TCPSynSent State = iota + 1
	TCPSynRecv
	TCPEstablished
	TCPFinWait
	TCPCloseWait
	TCPLastAck
	TCPTimeWait
	TCPClose    // reset
	TCPSynSent2 // both have sent a SYN
)

// States of SCTP.
const (
	SCTPClosed State = iota + 1
	SCTPCookieWait
	SCTPCookieEchoed
	SCTPEstablished
	SCTPShutdownSent
	SCTPShutdownReceived
	SCTPShutdownAckSent
)
