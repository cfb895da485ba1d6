package flows

import (
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

// StateOf returns what the connection or flow of an entry does; empty: it is over, and its entry stays for late
// packets.
func StateOf(e *Entry) look.State {
	switch e.Protocol {
	case lb.UDP:
		if !e.Answered() {
			return look.Unreplied
		}
		return look.Established
	case lb.SCTP:
		switch {
		case e.State == conntrack.SCTPClosed && e.Answered():
			return ""
		case e.State < conntrack.SCTPEstablished:
			return look.Dialling
		case e.State > conntrack.SCTPEstablished && e.State <= conntrack.SCTPShutdownAckSent:
			return look.Closing
		}
		return look.Established
	}
	switch e.State {
	case conntrack.TCPTimeWait, conntrack.TCPClose:
		return ""
	case conntrack.TCPSynSent, conntrack.TCPSynRecv, conntrack.TCPSynSent2:
		return look.Dialling
	case conntrack.TCPFinWait, conntrack.TCPCloseWait, conntrack.TCPLastAck:
		return look.HalfClosed
	}
	return look.Established
}

// IsOver reports whether the connection of an entry has ended.
func IsOver(e *Entry) bool { return StateOf(e) == "" }

// IsRefused reports whether a reset was the answer to a connection's first packet.
func IsRefused(e *Entry) bool {
	return e.Protocol == lb.TCP && e.State == conntrack.TCPClose && !e.Answered()
}

// EndOf returns how a connection or flow has ended, as far as the last state of its entry says. An entry that had time
// left was deleted.
func EndOf(e *Entry) lb.End {
	switch {
	case IsRefused(e):
		return lb.ServerConnect
	case e.Protocol == lb.TCP && e.State == conntrack.TCPClose:
		return lb.Reset
	case IsOver(e), e.Protocol == lb.TCP && e.State == conntrack.TCPLastAck:
		return lb.Normal
	case e.Left > 0:
		return lb.Killed
	case !e.Answered() && e.Protocol != lb.UDP, e.Protocol == lb.SCTP && e.State == conntrack.SCTPCookieWait:
		return lb.ServerTimeout
	case e.Protocol == lb.UDP:
		return lb.Normal
	}
	switch StateOf(e) {
	case look.Dialling:
		return lb.ClientConnect // the endpoint has answered, and the client no more
	case look.HalfClosed, look.Closing:
		return lb.HalfTimeout
	}
	if e.State == 0 {
		return lb.Normal // kernels before 5.12 do not say
	}
	return lb.IdleEnd
}
