package lb

import "net/netip"

var (
	front = netip.MustParseAddrPort("10.0.0.1:80")

	// here is the node of all tables that have no other.
	here = Node{
		Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8::7")},
		PodCIDRs:  prefixes("10.1.7.0/24"),
	}
)

// address returns the address of backend i.
func address(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 8080)
}

// echo returns a service at front whose ready backends have these numbers.
func echo(backends ...int) Service {
	s := Service{
		ID:        ID{Namespace: "default", Name: "echo", Protocol: TCP},
		Addresses: []Address{{Addr: front}},
	}
	for _, i := range backends {
		s.Backends = append(s.Backends, Backend{Addr: address(i), Ready: true, Serving: true})
	}
	return s
}

func numbers(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
