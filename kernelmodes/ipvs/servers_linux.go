package ipvs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/lb"
)

// held is a virtual server of ours as the kernel has it.
type held struct {
	server                         // its backends are in weights
	weights map[netip.AddrPort]int // of real servers; those that drain have 0
}

// table speaks with ipvs, in one address family.
type table struct {
	*ipvs.Handle
	ipv6   bool
	writes *uint64
}

// open opens the kernel's table of virtual servers, and counts what it writes there.
// The caller closes it.
func open(ipv6 bool, writes *uint64) (table, error) {
	h, err := ipvs.New("")
	if err != nil {
		return table{}, fmt.Errorf("open ipvs: %w", err)
	}
	return table{h, ipv6, writes}, nil
}

func (t table) family() uint16 {
	if t.ipv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// service returns a virtual server as the library has it.
func (t table) service(k key, s server) *ipvs.Service {
	out := &ipvs.Service{
		AddressFamily: t.family(), FWMark: k.mark,
		SchedName: s.scheduler, Flags: s.flags, Timeout: s.timeout,
		Netmask: ^uint32(0), // each client for itself
	}
	if t.ipv6 {
		out.Netmask = 128 // as a length
	}
	if k.mark == 0 {
		out.Protocol, out.Port = uint16(ipProtocols[k.protocol]), k.addr.Port()
		out.Address = net.IP(k.addr.Addr().AsSlice())
	}
	return out
}

func destination(a netip.AddrPort, weight int) *ipvs.Destination {
	return &ipvs.Destination{
		Address: net.IP(a.Addr().AsSlice()), Port: a.Port(), Weight: weight,
		ConnectionFlags: ipvs.ConnectionFlagMasq,
	}
}

func (t table) String() string {
	if t.ipv6 {
		return "IPv6"
	}
	return "IPv4"
}

func (k key) String() string {
	if k.mark != 0 {
		return fmt.Sprintf("mark %#x", k.mark)
	}
	return lb.Frontend{Protocol: k.protocol, Addr: k.addr}.String()
}

// list returns the virtual servers of the family, without their backends.
func (t table) list() (map[key]server, error) {
	all, err := t.GetServices()
	if err != nil {
		return nil, fmt.Errorf("list virtual servers: %w", err)
	}
	out := make(map[key]server, len(all))
	for _, s := range all {
		if s.AddressFamily != t.family() {
			continue
		}
		k := key{mark: s.FWMark}
		if k.mark == 0 {
			p := slices.Index(ipProtocols[:], uint8(s.Protocol))
			ip, ok := netip.AddrFromSlice(s.Address)
			if p < 1 || !ok {
				continue // of a kind that we never make
			}
			k.protocol, k.addr = lb.Protocol(p), netip.AddrPortFrom(ip, s.Port)
		}
		flags := s.Flags &^ flagHashed
		out[k] = server{scheduler: s.SchedName, flags: flags, timeout: s.Timeout, udp: k.protocol == lb.UDP}
	}
	return out, nil
}

// realServer is one as the kernel has it.
type realServer struct {
	weight int
	busy   bool // it has connections
}

// backends returns the real servers of a virtual one, none if that is not there.
func (t table) backends(k key) (map[netip.AddrPort]realServer, error) {
	list, err := t.GetDestinations(t.service(k, server{}))
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

// read returns the virtual servers for which ours is true.
func (t table) read(ours func(key) bool) (map[key]*held, error) {
	list, err := t.list()
	if err != nil {
		return nil, err
	}
	out := make(map[key]*held, len(list))
	for k, s := range list {
		if !ours(k) {
			continue
		}
		backends, err := t.backends(k)
		if err != nil {
			return nil, err
		}
		h := &held{server: s, weights: make(map[netip.AddrPort]int, len(backends))}
		for a, b := range backends {
			h.weights[a] = b.weight
		}
		out[k] = h
	}
	return out, nil
}

// noScheduler is the error of a virtual server whose scheduler the kernel lacks.
type noScheduler struct{ name string }

func (e noScheduler) Error() string { return fmt.Sprintf("the kernel has no scheduler %s", e.name) }

// put makes or changes a virtual server; have is nil if it is not there.
func (t table) put(k key, s server, have *held) error {
	*t.writes++
	call, verb := t.NewService, "make"
	if have != nil {
		call, verb = t.UpdateService, "change"
	}
	err := call(t.service(k, s))
	switch {
	case have == nil && errors.Is(err, syscall.EEXIST):
		err = t.UpdateService(t.service(k, s)) // another program's until now
	case errors.Is(err, syscall.ENOENT):
		return noScheduler{s.scheduler}
	}
	if err != nil {
		return fmt.Errorf("%s virtual server %s: %w", verb, k, err)
	}
	return nil
}

// setWeight gives a real server a weight, and makes it if it is not there.
func (t table) setWeight(k key, a netip.AddrPort, weight int, isThere bool) error {
	*t.writes++
	call, other, unless := t.NewDestination, t.UpdateDestination, error(syscall.EEXIST)
	if isThere {
		call, other, unless = other, call, syscall.ENOENT
	}
	err := call(t.service(k, server{}), destination(a, weight))
	if errors.Is(err, unless) {
		err = other(t.service(k, server{}), destination(a, weight))
	}
	if err != nil {
		return fmt.Errorf("set weight of %s at virtual server %s to %d: %w", a, k, weight, err)
	}
	return nil
}

// removeBackend removes a real server; one that is not there is no error.
func (t table) removeBackend(k key, a netip.AddrPort) error {
	*t.writes++
	err := t.DelDestination(t.service(k, server{}), destination(a, 0))
	if err != nil && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("remove %s from virtual server %s: %w", a, k, err)
	}
	return nil
}

// remove removes a virtual server with its real ones; one that is not there is no
// error.
func (t table) remove(k key) error {
	*t.writes++
	err := t.DelService(t.service(k, server{}))
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("remove virtual server %s: %w", k, err)
	}
	return nil
}
