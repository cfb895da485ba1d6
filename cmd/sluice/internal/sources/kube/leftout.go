package kube

import (
	"fmt"
	"net/netip"
)

// leftOut is the endpoints of one Service that no connection may go to, because of where
// their addresses are.
type leftOut struct {
	endpoints int    // how many
	example   string // the first of them
	reason    string // why that one is left out
}

// String returns "endpoint 127.0.0.1 is a loopback address, ...", and how many more there are.
func (l leftOut) String() string {
	text := fmt.Sprintf("endpoint %s is %s", l.example, l.reason)
	if l.endpoints > 1 {
		text += fmt.Sprintf("; and %d more are left out", l.endpoints-1)
	}
	return text
}

func (l *leftOut) add(address, reason string) {
	if l.endpoints++; l.endpoints == 1 {
		l.example, l.reason = address, reason
	}
}

// untrusted returns why no endpoint may be at an address, or nothing. The API server refuses
// these too, but objects may have come past it: a connection from this host would reach what its
// own programs, or its cloud, keep for the host alone.
func untrusted(addr netip.Addr) string {
	switch {
	case addr.IsLoopback():
		return "a loopback address, which is that of this node's own programs: give the node's own address"
	case addr.IsLinkLocalUnicast():
		return "a link-local address, at which there may be the metadata of a cloud"
	case addr.IsMulticast():
		return "a multicast address"
	case addr.IsUnspecified():
		return "the unspecified address"
	}
	return ""
}
