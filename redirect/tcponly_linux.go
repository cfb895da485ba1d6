package redirect

import (
	"bytes"
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// The change that there is most of, some TCP frontends more or fewer, is a few
// members of one set. Finding that out from whole plans takes 5 ms for 10,000
// frontends, and a tenth of one this way.

// tcpOnly brings a plan into force that differs from the last in TCP frontends only
// and changes no rule. It does nothing and reports false if that is not so, or not
// certain: the way of all other plans is right for this one too.
func (t *IPTables) tcpOnly(plan Plan) (done bool, err error) {
	k := &t.kernel
	rest, last := plan, k.last
	rest.TCP, last.TCP = nil, nil
	if !k.inForce || k.rules == nil || !k.shape.sets || !k.oldGone || len(k.changed) > 0 || !rest.Equal(last) {
		return false, nil
	}
	at, was, is := differing(k.last.TCP, plan.TCP)
	gone, come, ok := k.changedTCP(plan, was, is)
	if !ok {
		return false, nil
	}
	k.own.TCP = patch(k.own.TCP, gone, come, compareAddr)
	if len(gone)+len(come) > 0 && !bytes.Equal(k.shape.render(k.own), k.rules) {
		k.own.TCP = patch(k.own.TCP, come, gone, compareAddr)
		return false, nil
	}
	add, del := tcpMembers(come), tcpMembers(gone)
	k.inForce = false
	if err = t.changeSet(netfilter.Set.Add, setTCP, add); err == nil {
		err = t.changeSet(netfilter.Set.Delete, setTCP, del)
	}
	if err != nil {
		k.rules, k.sets = nil, nil
		return false, err
	}
	k.sets[setTCP] = patch(k.sets[setTCP], del, add, member.Compare)
	k.last.TCP = slices.Replace(k.last.TCP, at, at+len(was), is...)
	k.inForce = true
	return true, nil
}

// differing returns what of two lists lies between their equal beginnings and ends, and
// where that begins.
func differing(a, b []netip.AddrPort) (at int, was, is []netip.AddrPort) {
	was, is = a, b
	for len(was) > 0 && len(is) > 0 && was[0] == is[0] {
		at++
		was, is = was[1:], is[1:]
	}
	for len(was) > 0 && len(is) > 0 && was[len(was)-1] == is[len(is)-1] {
		was, is = was[:len(was)-1], is[:len(is)-1]
	}
	return at, was, is
}

// changedTCP returns which frontends of this family are not in own.TCP any more, and
// which not yet, sorted, if the plan is correct and lists each once. It reports false if that may not be so. was and
// is are where the plans differ.
func (k *kernel) changedTCP(plan Plan, was, is []netip.AddrPort) (gone, come []netip.AddrPort, ok bool) {
	for _, addr := range is {
		if !addr.IsValid() || addr.Port() == 0 || nodePort(addr) || plan.TCPPort == 0 {
			return nil, nil, false
		}
	}
	was, wasOnce := ofFamily(was, k.shape.ipv6)
	is, isOnce := ofFamily(is, k.shape.ipv6)
	// A frontend that is listed twice may stay when one of the two goes.
	once := k.once && wasOnce && isOnce
	gone, come = without(was, is), without(is, was)
	for _, addr := range come {
		if _, twice := slices.BinarySearchFunc(k.own.TCP, addr, compareAddr); twice {
			return nil, nil, false
		}
		f := lb.Frontend{Protocol: lb.TCP, Addr: addr}
		for _, others := range [][]lb.Frontend{k.own.Accept, k.own.Refuse, k.own.Drop} {
			if _, twice := slices.BinarySearchFunc(others, f, compareFrontend); twice {
				return nil, nil, false
			}
		}
	}
	return gone, come, once
}

// ofFamily returns those of a family, as packets carry them, sorted, and each once if once
// reports true.
func ofFamily(list []netip.AddrPort, ipv6 bool) (out []netip.AddrPort, once bool) {
	for _, addr := range list {
		if ip := addr.Addr().Unmap(); ip.Is6() == ipv6 {
			out = append(out, netip.AddrPortFrom(ip, addr.Port()))
		}
	}
	slices.SortFunc(out, compareAddr)
	n := len(out)
	out = slices.Compact(out)
	return out, len(out) == n
}

// without returns what of a, which is sorted as b is, is not in b.
func without(a, b []netip.AddrPort) []netip.AddrPort {
	var out []netip.AddrPort
	for _, v := range a {
		if _, found := slices.BinarySearchFunc(b, v, compareAddr); !found {
			out = append(out, v)
		}
	}
	return out
}

// patch takes gone out of list, which is sorted, and puts come in, in the memory of list as
// far as that suffices. None of come is in list, and all of gone are.
func patch[T comparable](list, gone, come []T, compare func(a, b T) int) []T {
	for _, v := range gone {
		if i, found := slices.BinarySearchFunc(list, v, compare); found {
			list = slices.Delete(list, i, i+1)
		}
	}
	if len(come) > 16 { // for fewer, moving the others is cheaper than comparing them
		list = append(list, come...)
		slices.SortFunc(list, compare)
		return list
	}
	for _, v := range come {
		i, _ := slices.BinarySearchFunc(list, v, compare)
		list = slices.Insert(list, i, v)
	}
	return list
}

func tcpMembers(list []netip.AddrPort) []member {
	out := make([]member, len(list))
	for i, addr := range list {
		out[i] = memberOf(lb.Frontend{Protocol: lb.TCP, Addr: addr})
	}
	return out
}
