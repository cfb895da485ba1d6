package netfilter

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/lb"
)

// ipProtocols are the numbers of protocols in packets.
var ipProtocols = [...]uint8{lb.TCP: unix.IPPROTO_TCP, lb.UDP: unix.IPPROTO_UDP, lb.SCTP: unix.IPPROTO_SCTP}

// ProtocolNumber returns the number of a protocol in packets.
func ProtocolNumber(p lb.Protocol) uint8 { return ipProtocols[p] }

// ProtocolOf returns the protocol of a number, the zero Protocol if it is none of lb's.
func ProtocolOf(number uint8) lb.Protocol {
	return lb.Protocol(max(0, slices.Index(ipProtocols[:], number)))
}

// ProtocolName is how iptables spells a protocol.
func ProtocolName(p lb.Protocol) string { return strings.ToLower(p.String()) }

// MemberOf returns what stands for a frontend in sets.
func MemberOf(f lb.Frontend) Member {
	return Member{Addr: f.Addr.Addr(), Protocol: ipProtocols[f.Protocol], Port: f.Addr.Port()}
}

// Frontend returns what a member with an address and a port stands for.
func (e Member) Frontend() lb.Frontend {
	return lb.Frontend{Protocol: ProtocolOf(e.Protocol), Addr: netip.AddrPortFrom(e.Addr, e.Port)}
}

// ToFrontend matches packets to the port of a frontend, and to its address unless that is
// unspecified: then to all addresses.
func ToFrontend(f lb.Frontend) string {
	m := fmt.Sprintf("-p %s -m %[1]s --dport %d", ProtocolName(f.Protocol), f.Addr.Port())
	if addr := f.Addr.Addr(); !addr.IsUnspecified() {
		m = fmt.Sprintf("-d %s/%d %s", addr, addr.BitLen(), m)
	}
	return m
}
