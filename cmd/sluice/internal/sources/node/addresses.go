package node

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// Addresses caches the node's addresses. They are read again when the system has reported
// a change, where it does so, since reading may take long: on Linux it waits for a lock of
// the whole host that is held while interfaces come and go (RTNL), as they do whenever a
// pod starts or ends. The zero Addresses reads them each time. All methods may be called by
// any goroutine.
type Addresses struct {
	mu     sync.Mutex
	known  []netip.Addr   // valid while notice reports no change; nil: not read yet
	notice *addressNotice // nil: the system does not report changes
}

// Watch subscribes to changes. Without it, or after an error, the addresses are read each
// time. errors.ErrUnsupported: this system reports none. The caller closes a.
func (a *Addresses) Watch() error {
	notice, err := newAddressNotice()
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.notice, a.known = notice, nil
	return nil
}

// Get returns the addresses, sorted. The caller owns the slice.
func (a *Addresses) Get() ([]netip.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	// A change after this is reported, and seen by the next call.
	var err error
	if a.notice == nil || a.notice.changed() || a.known == nil {
		a.known, err = LocalAddrs()
	}
	return slices.Clone(a.known), err
}

// Close ends the subscription.
func (a *Addresses) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.notice == nil {
		return nil
	}
	err := a.notice.close()
	a.notice = nil
	return err
}

// DefaultAddrs returns the address of each family that the node reaches the world from, by its default route. A family
// without one is left out. Nothing is sent: a datagram socket is connected to an address for documentation (RFC 5737,
// RFC 3849), which no other route leads to.
func DefaultAddrs() (out []netip.Addr) {
	for _, beyond := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		c, err := net.Dial("udp", beyond)
		if err != nil {
			continue
		}
		out = append(out, c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap())
		_ = c.Close()
	}
	return out
}

// LocalAddrs reads the addresses of the node, sorted. Link-local ones are left out: they
// mean nothing without an interface.
func LocalAddrs() ([]netip.Addr, error) {
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
