package conntrack

import (
	"iter"
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
)

// DeleteUnreplied deletes the conntrack entries of connections, of a family, to frontends
// of TCP and SCTP that were added after the client sent its first packet, whichever data
// path forwards them now, so that the next packet that the client sends passes the rules.
// An entry would keep them from it: rules see the first packet of a connection only. Entries
// that have seen a reply, or whose destination is translated, are left alone. It returns
// the number of deleted entries. A frontend with an unspecified address is a port of every
// address of this node but loopback ones.
//
// However many frontends a protocol has, it takes the kernel one walk through all entries,
// of which it returns few if it is Linux 5.15 or later, and none if there are no frontends.
// It works in the network namespace of the calling thread. On other systems than Linux the
// error is errors.ErrUnsupported.
func DeleteUnreplied(ipv6 bool, tcp, sctp []netip.AddrPort) (uint64, error) {
	return deleteUnreplied(ipv6, tcp, sctp)
}

// Delete deletes those entries of a family that are chosen, and returns their number. choose must not keep the entry.
// Only what it chooses is held in memory. On other systems than Linux the error is errors.ErrUnsupported.
func Delete(ipv6 bool, choose func(*Entry) bool) (uint64, error) { return deleteChosen(ipv6, choose) }

// Which says about which entries DeleteFlows asks the kernel.
type Which struct {
	Protocol lb.Protocol
	IPv6     bool
	// Frontends are those whose ports count: the first packet of an entry went to one or, if Answers, came from it.
	Frontends iter.Seq[netip.AddrPort]
	Answers   bool
	// Without are bits that an entry does not have.
	Without Status
}

// DeleteFlows deletes those entries that are chosen, and returns their number. It is passed others than asked for where
// that costs less, or the kernel is older than 5.8 or, for Without, than 5.15. It takes the kernel a walk through the
// whole table for each port, or one for all flows of the protocol. choose must not keep the entry. On other systems
// than Linux the error is errors.ErrUnsupported.
func DeleteFlows(w Which, choose func(*Entry) bool) (uint64, error) { return deleteFlows(&w, choose) }
