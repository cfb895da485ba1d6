package redirect

import "net/netip"

// screen makes the rules of the mangle table, which sees a packet before nat changes
// where it goes to: they drop clients that may not ask.
//
// What comes from the node itself passes OUTPUT. It passes PREROUTING too, on loopback,
// if it is for an address of the node.
func (v *view) screen() {
	v.rule("mangle", chainPrerouting, "! -i lo", "other hosts and pods", v.chain(chainOutside))
	v.rule("mangle", chainPrerouting, "", "all clients", v.chain(chainDrop))
	v.outside()
	v.drop()
}

// outside makes the rules that drop what other hosts ask.
func (v *view) outside() {
	if v.sets {
		v.rule("mangle", chainOutside, v.member(setInside, "src"), "pods of this node", "RETURN")
	} else {
		for _, inside := range v.host.Inside {
			v.rule("mangle", chainOutside, from(inside), "pods of this node", "RETURN")
		}
	}
	v.exact(verdictOutside)
	v.nodePorts(verdictOutside)
}

// drop makes the rules that drop what no client, or not this one, may ask. A client that
// may ask one restricted frontend is not asking another.
func (v *view) drop() {
	v.exact(verdictDrop)
	const comment = "not from this source"
	if v.sets {
		match := v.member(setRestricted, "dst,dst") + " " + v.nonMember(setAllowed, "dst,dst,src")
		v.rule("mangle", chainDrop, match, comment, "DROP")
	} else {
		for _, e := range v.entries {
			for _, source := range e.Sources {
				v.rule("mangle", chainDrop, from(source)+" "+to(e.Frontend), "may ask", "RETURN")
			}
			if e.Sources != nil {
				v.rule("mangle", chainDrop, to(e.Frontend), comment, "DROP")
			}
		}
	}
	v.nodePorts(verdictDrop)
}

// nonMember matches packets that are not in a set.
func (s shape) nonMember(set, dirs string) string {
	return "-m set ! --match-set " + s.set(set) + " " + dirs
}

// from matches packets from a source.
func from(p netip.Prefix) string { return "-s " + p.String() }
