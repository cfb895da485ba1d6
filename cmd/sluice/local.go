package main

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// nodeAddresses are the addresses of the node. They are read again when the system has
// told of a change, where it does so, since to read them may take long: on Linux it waits
// for a lock of the whole host that is held while interfaces come and go (RTNL), as they do
// whenever a pod starts or ends. The zero nodeAddresses reads them each time.
type nodeAddresses struct {
	mu     sync.Mutex
	known  []netip.Addr // valid while notice reports no change
	read   bool
	notice *addressNotice // nil: the system does not tell
}

// watch has the system tell of changes from now on. Without it, or after an error, the
// addresses are read each time.
func (n *nodeAddresses) watch() error {
	notice, err := noticeAddresses()
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notice, n.read = notice, false
	return nil
}

// get returns the addresses, sorted. The caller owns the slice.
func (n *nodeAddresses) get() ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	// What changes after this is told of, and asked for by the next.
	if n.notice != nil && !n.notice.changed() && n.read {
		return slices.Clone(n.known), nil
	}
	n.read = false
	known, err := localAddrs()
	if err != nil {
		return nil, err
	}
	n.known, n.read = known, true
	return slices.Clone(known), nil
}

func (n *nodeAddresses) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.notice == nil {
		return nil
	}
	err := n.notice.close()
	n.notice = nil
	return err
}

// localAddrs returns the addresses of the node, sorted. Link-local ones are left
// out: they mean nothing without an interface.
func localAddrs() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLinkLocalUnicast() {
			out = append(out, p.Addr().Unmap())
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}
