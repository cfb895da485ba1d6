package addresses

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
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

	sys   addressHost // nil: this host
	index uint32      // of the interface; 0 until it is found
	known bool        // ours and other are what the host has, as far as we know
	ours  map[netip.Addr]bool
	other map[netip.Addr]bool
	want  map[netip.Addr]bool // by the last Sync

	guard guard // of ours
	held  atomic.Pointer[[]netip.Addr]
}

// address is an address of an interface.
type address struct {
	ip    netip.Addr
	index uint32 // of the interface
	ours  bool
}

// addressHost is what the operating system does. host is that of this one.
type addressHost interface {
	// find returns the index of the interface that Set.Interface names.
	find(name string) (uint32, error)
	// list returns the addresses of one family that the host has.
	list(ipv6 bool) ([]address, error)
	// add puts an address on its interface. exists: it is there, and not ours.
	add(address) (exists bool, err error)
	// ready waits, for a bounded time, until sockets can be on addresses that were added.
	ready(context.Context, []address) error
	// remove takes one of ours away. That it is not there is no error.
	remove(address) error
	// busy returns the addresses of one family that open TCP connections have.
	busy(ipv6 bool) (map[netip.Addr]bool, error)
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
		_ = l.Close()
	}
	return a.open()
}

// Guard keeps programs of the host that listen on all addresses from being reached at those that the following Syncs
// add. After an error they are reached there. It is called once, before the first Sync.
func (a *Set) Guard() error { return a.guard.open(a.IPv6) }

// open finds the interface.
func (a *Set) open() (err error) {
	if a.sys == nil {
		a.sys = host{}
	}
	if a.index == 0 {
		a.index, err = a.sys.find(a.Interface)
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
	a.want = make(map[netip.Addr]bool, len(want))
	for _, ip := range want {
		if ip = ip.Unmap(); ip.IsValid() && ip.Is6() == a.IPv6 && !ip.IsLoopback() && !ip.IsUnspecified() {
			a.want[ip] = true
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
	if !a.known {
		if err := a.look(); err != nil {
			return err
		}
	}
	var errs []error
	var added []address
	coming := maps.Clone(a.ours)
	for ip := range a.want {
		if !a.other[ip] {
			coming[ip] = true
		}
	}
	if err := a.guard.sync(coming); err != nil {
		return fmt.Errorf("keep programs of the host apart: %w", err)
	}
	for _, ip := range inOrder(a.want) {
		if a.ours[ip] || a.other[ip] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		at := address{ip, a.index, true}
		switch exists, err := a.sys.add(at); {
		case err != nil:
			errs = append(errs, fmt.Errorf("add %s: %w", ip, err))
		case exists:
			a.other[ip] = true
		default:
			a.ours[ip] = true
			added = append(added, at)
		}
	}
	if len(added) > 0 {
		errs = append(errs, a.sys.ready(ctx, added))
	}
	errs = append(errs, a.release(), a.guard.sync(a.ours))
	return errors.Join(errs...)
}

// look finds out what the host has. Ours on another interface, from a start with another
// --service-interface, are removed: they would be left over for good.
func (a *Set) look() error {
	if err := a.open(); err != nil {
		return err
	}
	all, err := a.sys.list(a.IPv6)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	ours, other := make(map[netip.Addr]bool), make(map[netip.Addr]bool)
	for _, at := range all {
		switch {
		case !at.ours:
			other[at.ip] = true
		case at.index == a.index:
			ours[at.ip] = true
		default:
			if err := a.sys.remove(at); err != nil {
				return fmt.Errorf("remove %s: %w", at.ip, err)
			}
		}
	}
	a.ours, a.other = ours, other
	return nil
}

// release removes those of ours that are neither wanted nor in use.
func (a *Set) release() error {
	leaving := slices.DeleteFunc(inOrder(a.ours), func(ip netip.Addr) bool { return a.want[ip] })
	if len(leaving) == 0 {
		return nil
	}
	busy, err := a.sys.busy(a.IPv6)
	if err != nil {
		return fmt.Errorf("list open connections: %w", err)
	}
	var errs []error
	for _, ip := range leaving {
		if busy[ip] {
			continue
		}
		if err := a.sys.remove(address{ip, a.index, true}); err != nil {
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
	if err := a.look(); err != nil {
		return true, err
	}
	for ip := range a.want {
		if !a.ours[ip] && !a.other[ip] {
			a.known = false
			return false, nil
		}
	}
	err := a.release()
	a.publish()
	return true, err
}

// Held returns the addresses that the host has because of us, sorted. It may be
// called by any goroutine; the slice is not to be changed.
func (a *Set) Held() []netip.Addr {
	if held := a.held.Load(); held != nil {
		return *held
	}
	return nil
}

func (a *Set) publish() {
	held := inOrder(a.ours)
	a.held.Store(&held)
}

// inOrder returns a set sorted.
func inOrder(set map[netip.Addr]bool) []netip.Addr {
	return slices.SortedFunc(maps.Keys(set), netip.Addr.Compare)
}

// Cleanup removes every service address that any Set has put on this
// host, and the device that was made for them, of both address families. If nothing
// is there it does nothing. It is not to run while a Set is in use.
func Cleanup(context.Context) error {
	var errs []error
	for _, ipv6 := range []bool{false, true} {
		all, err := host{}.list(ipv6)
		if err != nil {
			errs = append(errs, fmt.Errorf("list addresses: %w", err))
		}
		for _, at := range all {
			if !at.ours {
				continue
			}
			if err := (host{}).remove(at); err != nil {
				errs = append(errs, fmt.Errorf("remove %s: %w", at.ip, err))
			}
		}
	}
	errs = append(errs, removeDevice(), removeGuard())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove service addresses: %w", err)
	}
	return nil
}
