package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/lb"
)

// held is a virtual server of ours as the kernel has it.
type held struct {
	server                         // its backends are in weights
	weights map[netip.AddrPort]int // of real servers; those that drain have 0
	address netip.Addr             // that our routes make the node's while it is there; invalid: none
}

// table speaks with ipvs, in one address family.
type table struct {
	*ipvs.Handle
	batch
	ipv6   bool
	writes *uint64
}

// open opens the kernel's table of virtual servers, and counts what it writes there.
// The caller closes it.
func open(ipv6 bool, writes *uint64) (*table, error) {
	f, err := netlink.GenlFamilyGet("IPVS")
	if err != nil {
		return nil, fmt.Errorf("%w: the kernel has no ip_vs: %w", errors.ErrUnsupported, err)
	}
	h, err := ipvs.New("")
	if err != nil {
		return nil, fmt.Errorf("open ipvs: %w", err)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("open socket to ipvs: %w", err)
	}
	return &table{Handle: h, batch: batch{fd: fd, number: f.ID}, ipv6: ipv6, writes: writes}, nil
}

// Close closes the table.
func (t *table) Close() {
	t.Handle.Close()
	_ = unix.Close(t.fd)
}

func (t *table) family() uint16 {
	if t.ipv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func (k key) String() string {
	if k.mark != 0 {
		return fmt.Sprintf("mark %#x", k.mark)
	}
	return lb.Frontend{Protocol: k.protocol, Addr: k.addr}.String()
}

// read returns the virtual servers of the family for which ours is true.
func (t *table) read(ours func(key) bool) (map[key]*held, error) {
	all, err := t.GetServices()
	if err != nil {
		return nil, fmt.Errorf("list virtual servers: %w", err)
	}
	out := make(map[key]*held, len(all))
	for _, s := range all {
		k := key{mark: s.FWMark}
		if k.mark == 0 {
			p := slices.Index(ipProtocols[:], uint8(s.Protocol))
			ip, _ := netip.AddrFromSlice(s.Address)
			k.protocol, k.addr = lb.Protocol(max(p, 0)), netip.AddrPortFrom(ip, s.Port)
		}
		if s.AddressFamily != t.family() || !ours(k) {
			continue
		}
		backends, err := t.backends(k)
		if err != nil {
			return nil, err
		}
		h := &held{weights: make(map[netip.AddrPort]int, len(backends))}
		h.server = server{
			scheduler: s.SchedName, flags: s.Flags &^ flagHashed, timeout: s.Timeout, udp: k.protocol == lb.UDP,
		}
		for a, b := range backends {
			h.weights[a] = b.weight
		}
		out[k] = h
	}
	return out, nil
}

// realServer is one as the kernel has it.
type realServer struct {
	weight int
	busy   bool // it has connections
}

// backends returns the real servers of a virtual one, none if that is not there.
func (t *table) backends(k key) (map[netip.AddrPort]realServer, error) {
	s := &ipvs.Service{AddressFamily: t.family(), FWMark: k.mark}
	if k.mark == 0 {
		s.Protocol, s.Address, s.Port = uint16(ipProtocols[k.protocol]), k.addr.Addr().AsSlice(), k.addr.Port()
	}
	list, err := t.GetDestinations(s)
	if errors.Is(err, syscall.ESRCH) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("list real servers of %s: %w", k, err)
	}
	out := make(map[netip.AddrPort]realServer, len(list))
	for _, d := range list {
		if ip, ok := netip.AddrFromSlice(d.Address); ok {
			// Inactive connections are closing, which may take as long as one side still sends.
			busy := d.ActiveConnections+d.InactiveConnections > 0
			out[netip.AddrPortFrom(ip.Unmap(), d.Port)] = realServer{d.Weight, busy}
		}
	}
	return out, nil
}

// noScheduler is the error of a virtual server whose scheduler the kernel lacks.
type noScheduler struct{ name string }

func (e noScheduler) Error() string { return fmt.Sprintf("the kernel has no scheduler %s", e.name) }
