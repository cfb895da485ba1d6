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
	const comment = "not for other hosts"
	if v.sets {
		v.rule("mangle", chainOutside, v.member(setInside, "src"), "pods of this node", "RETURN")
	} else {
		for _, inside := range v.host.Inside {
			v.rule("mangle", chainOutside, from(inside), "pods of this node", "RETURN")
		}
	}
	dropped := func(e Entry) bool { return e.DropOutside }
	for _, match := range v.exactly(setOutside, v.frontends(dropped)) {
		v.rule("mangle", chainOutside, match, comment, "DROP")
	}
	v.dropNodePorts(chainOutside, dropped, setOutsideNode, comment)
}

// drop makes the rules that drop what no client, or not this one, may ask. A client that
// may ask one restricted frontend is not asking another.
func (v *view) drop() {
	for _, match := range v.exactly(setDrop, v.frontends(does(Drop))) {
		v.rule("mangle", chainDrop, match, "no answer", "DROP")
	}
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
	v.dropNodePorts(chainDrop, does(Drop), setDropNode, "no answer")
}

// dropNodePorts makes the last rules of a chain, which drop what is asked of some node
// ports. A frontend with the exact address takes precedence over one.
func (v *view) dropNodePorts(chain string, dropped func(Entry) bool, set, comment string) {
	v.hidden("mangle", chain, dropped)
	for _, m := range v.nodePorts(set, v.frontends(dropped)) {
		v.rule("mangle", chain, m.match, comment, "DROP")
	}
}

// nonMember matches packets that are not in a set.
func (s shape) nonMember(set, dirs string) string {
	return "-m set ! --match-set " + s.set(set) + " " + dirs
}

// from matches packets from a source.
func from(p netip.Prefix) string { return "-s " + p.String() }
