package addresses

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
)

// Set puts service addresses of one address family on an interface of this
// host, for a proxy to listen on them: packets for them then arrive without any rule
// of a packet filter. The zero value is usable: IPv4, on the platform's interface.
// Its methods are called by one goroutine, except Held, and work in the network
// namespace of the calling thread. Set the fields before the first call. There is
// nothing to close.
//
// On Linux they are /32 and /128 addresses on a dummy device of our own, or on the
// loopback device where the kernel has no dummy. Each carries a protocol number
// (IFA_PROTO, Linux 5.18) and a metric (IFA_RT_PRIORITY, Linux 4.18) by which it is
// known as ours. They are not chosen as the source of what the node asks others: IPv4 ones have
// scope host, IPv6 ones are deprecated (RFC 4862 section 5.5.4). Needs CAP_NET_ADMIN.
//
// On Windows they are unicast addresses of an interface, put there by the IP helper
// API, of which the system forgets at its next start. Which are ours is in the
// registry, which forgets as well. Needs an administrator.
type Set struct {
	// IPv6 chooses the address family.
	IPv6 bool

	// Interface is the name of the interface that gets the addresses. Empty: on Linux
	// as above; on Windows what the environment variable INTERFACE_TO_ADD_SERVICE_IP
	// names, as for kube-proxy's removed winuserspace mode, or else the loopback
	// interface.
	Interface string

	sys   addressHost // nil: this host, at the first call
	known bool        // ours and others are what the host has, as far as we know
	ours  map[netip.Addr]struct{}
	other map[netip.Addr]struct{}
	want  map[netip.Addr]struct{} // by the last Sync

	mu   sync.Mutex // guards held
	held []netip.Addr
}

// addressHost is what the operating system does for one Set.
type addressHost interface {
	// list returns the addresses that are ours, and those that the host has besides.
	list() (ours, others map[netip.Addr]struct{}, err error)
	// add puts an address on the interface. exists: it is there, and not ours.
	add(netip.Addr) (exists bool, err error)
	// ready waits, for a bounded time, until sockets can be on addresses that were added.
	ready(context.Context, []netip.Addr) error
	// remove takes one of ours away. That it is not there is no error.
	remove(netip.Addr) error
	// busy returns the addresses of this host that open TCP connections have.
	busy() (map[netip.Addr]struct{}, error)
}

// Probe reports whether this host can be given addresses of the family, as far as that
// can be found without changing any: there is an interface for them, and IPv6 if it
// is asked for. The error wraps errors.ErrUnsupported on systems other than Linux and Windows.
func (a *Set) Probe() error {
	if a.IPv6 {
		// Without IPv6, or with it disabled, no socket gets this address.
		l, err := net.Listen("tcp", "[::1]:0")
		if err != nil {
			return fmt.Errorf("find out whether the host has IPv6: %w", err)
		}
		if err := l.Close(); err != nil {
			return fmt.Errorf("find out whether the host has IPv6: %w", err)
		}
	}
	return a.open()
}

// open makes sys.
func (a *Set) open() (err error) {
	if a.sys == nil {
		a.sys, err = newAddressHost(a.IPv6, a.Interface)
	}
	return err
}

// Sync makes the host hold those of want that are of the family, and none of ours
// besides. Addresses that the host has anyway, loopback ones among them, are neither
// added nor ever removed. One that is not wanted any more, but that TCP connections
// still use, stays until Verify finds that they have ended.
//
// The first Sync, and each one after an error or after Verify returned false, looks
// at what the host has: what a process that was killed left behind is taken over or
// removed. After an error some of want may not be there; what was held and is
// wanted still is.
func (a *Set) Sync(ctx context.Context, want []netip.Addr) error {
	a.want = make(map[netip.Addr]struct{}, len(want))
	for _, ip := range want {
		if ip = ip.Unmap(); ip.IsValid() && ip.Is6() == a.IPv6 && !ip.IsLoopback() && !ip.IsUnspecified() {
			a.want[ip] = struct{}{}
		}
	}
	err := a.sync(ctx)
	a.known = err == nil
	a.publish()
	if err != nil {
		return fmt.Errorf("hold service addresses: %w", err)
	}
	return nil
}

func (a *Set) sync(ctx context.Context) error {
	if err := a.look(); err != nil {
		return err
	}
	missing := make(map[netip.Addr]struct{})
	for ip := range a.want {
		_, ours := a.ours[ip]
		if _, other := a.other[ip]; !ours && !other {
			missing[ip] = struct{}{}
		}
	}
	var errs []error
	var added []netip.Addr
	for _, ip := range inOrder(missing) {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		switch exists, err := a.sys.add(ip); {
		case err != nil:
			errs = append(errs, fmt.Errorf("add %s: %w", ip, err))
		case exists:
			a.other[ip] = struct{}{}
		default:
			a.ours[ip] = struct{}{}
			added = append(added, ip)
		}
	}
	if len(added) > 0 {
		errs = append(errs, a.sys.ready(ctx, added))
	}
	return errors.Join(append(errs, a.release())...)
}

// look finds out what the host has, unless that is known.
func (a *Set) look() (err error) {
	if a.known {
		return nil
	}
	if err := a.open(); err != nil {
		return err
	}
	a.ours, a.other, err = a.sys.list()
	return err
}

// release removes those of ours that are neither wanted nor in use.
func (a *Set) release() error {
	leaving := make(map[netip.Addr]struct{})
	for ip := range a.ours {
		if _, wanted := a.want[ip]; !wanted {
			leaving[ip] = struct{}{}
		}
	}
	if len(leaving) == 0 {
		return nil
	}
	busy, err := a.sys.busy()
	if err != nil {
		return fmt.Errorf("list open connections: %w", err)
	}
	var errs []error
	for _, ip := range inOrder(leaving) {
		if _, used := busy[ip]; used {
			continue
		}
		if err := a.sys.remove(ip); err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", ip, err))
			continue
		}
		delete(a.ours, ip)
	}
	return errors.Join(errs...)
}

// Verify reports whether the host still has every address that Sync was asked for; if
// not, call Sync. It is also when addresses go whose last connection has ended since.
func (a *Set) Verify(context.Context) (bool, error) {
	if !a.known {
		return false, nil
	}
	ours, other, err := a.sys.list()
	if err != nil {
		return true, fmt.Errorf("list addresses: %w", err)
	}
	for ip := range a.want {
		_, have := ours[ip]
		if _, had := other[ip]; !have && !had {
			a.known = false
			return false, nil
		}
	}
	a.ours, a.other = ours, other
	err = a.release()
	a.publish()
	return true, err
}

// Held returns the addresses that the host has because of us, sorted. It may be
// called by any goroutine; the slice is not to be changed.
func (a *Set) Held() []netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held
}

func (a *Set) publish() {
	held := inOrder(a.ours)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held = held
}

// inOrder returns a set sorted.
func inOrder(set map[netip.Addr]struct{}) []netip.Addr {
	out := make([]netip.Addr, 0, len(set))
	for ip := range set {
		out = append(out, ip)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// Cleanup removes every service address that any Set has put on this
// host, and the device that was made for them, of both address families. If nothing
// is there it does nothing. It is not to run while a Set is in use.
func Cleanup(context.Context) error {
	var errs []error
	for _, ipv6 := range []bool{false, true} {
		errs = append(errs, cleanup(ipv6))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove service addresses: %w", err)
	}
	return nil
}
