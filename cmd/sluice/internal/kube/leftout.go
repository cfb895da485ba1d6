package kube

import (
	"fmt"
	"net/netip"
)

// LeftOut is the endpoints of one Service that no connection may go to, because of where
// their addresses are.
type LeftOut struct {
	Namespace, Name string // of the Service
	Endpoints       int    // how many
	Example         string // the first of them
	Reason          string // why that one is left out
}

// String returns "endpoint 127.0.0.1 is a loopback address, ...", and how many more there are.
func (l LeftOut) String() string {
	text := fmt.Sprintf("endpoint %s is %s", l.Example, l.Reason)
	if l.Endpoints > 1 {
		text += fmt.Sprintf("; and %d more are left out", l.Endpoints-1)
	}
	return text
}

func (l *LeftOut) add(address, reason string) {
	if l.Endpoints++; l.Endpoints == 1 {
		l.Example, l.Reason = address, reason
	}
}

// untrusted returns why no endpoint may be at an address, or nothing. The API server refuses
// these too, but objects may have come past it: a connection from this host would reach what its
// own programs, or its cloud, keep for the host alone.
func untrusted(addr netip.Addr) string {
	switch {
	case addr.IsLoopback():
		return "a loopback address, which is that of this node's own programs"
	case addr.IsLinkLocalUnicast():
		return "a link-local address, at which there may be the metadata of a cloud"
	case addr.IsMulticast():
		return "a multicast address"
	case addr.IsUnspecified():
		return "the unspecified address"
	}
	return ""
}
