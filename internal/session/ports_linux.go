package session

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
)

// maxWaiting bounds the dials of one loop that wait for a port towards one backend.
const maxWaiting = 256

// noPorts is a backend towards which no local port is free, and the dials that wait for one. A connect(2) that finds
// none has walked through all of them (ip_local_port_range, ip(7)), so one for each ShortageRetry asks for all.
type noPorts[C Owner[C]] struct {
	sh      *Shard[C]
	backend netip.AddrPort
	waiting []*dial[C]
	retry   eventloop.Timer
}

// isNoPorts reports whether connect(2), or SCTP's bind(2), found no local port.
func isNoPorts(err error) bool {
	return err == unix.EADDRNOTAVAIL || err == unix.EADDRINUSE || err == unix.EAGAIN
}

// noPortsTo notes that no port is free towards a backend.
func (sh *Shard[C]) noPortsTo(backend netip.AddrPort) *noPorts[C] {
	n := &noPorts[C]{sh: sh, backend: backend}
	if sh.noPorts == nil {
		sh.noPorts = make(map[netip.AddrPort]*noPorts[C])
	}
	sh.noPorts[backend] = n
	sh.Loop.After(&n.retry, n, ShortageRetry)
	return n
}

// add makes d wait for a port. False: too many wait, or d has waited for long.
func (n *noPorts[C]) add(d *dial[C]) bool {
	if len(n.waiting) >= maxWaiting || !d.ladder.Short(n.sh.Count) {
		n.sh.Count.NoPorts.Add(1)
		return false
	}
	d.waits = n
	n.waiting = append(n.waiting, d)
	return true
}

// remove ends the wait of d.
func (n *noPorts[C]) remove(d *dial[C]) {
	d.waits = nil
	if i := slices.Index(n.waiting, d); i >= 0 {
		n.waiting = slices.Delete(n.waiting, i, i+1)
	}
}

// Expire has the dials go on. The first of them to find no port again makes the others wait.
func (n *noPorts[C]) Expire(*eventloop.Timer) {
	delete(n.sh.noPorts, n.backend)
	for len(n.waiting) > 0 {
		d := n.waiting[0]
		n.remove(d)
		d.ready()
	}
}
