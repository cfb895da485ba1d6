package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// LocalAddrs returns the addresses of this node.
func LocalAddrs() (map[netip.Addr]bool, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses of the node: %w", err)
	}
	local := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				local[ip.Unmap()] = true
			}
		}
	}
	return local, nil
}

// DeleteFlows deletes the conntrack entries of UDP flows of a family that a filter
// chooses, and returns their number. It is asked about those whose first packet went to a
// port of asked or came from one of asking, and about others where there are many ports or
// the kernel is older than 5.8. The addresses that it is told are not to be kept. It takes
// the kernel a walk through all entries for each port, but to name an entry costs several
// times what it costs to pass it by.
func DeleteFlows(ipv6 bool, asked, asking []uint16, f netlink.CustomConntrackFilter) (uint64, error) {
	const few = 8 // walks through the table that cost less than to name every UDP flow
	fail := func(err error) error { return fmt.Errorf("delete conntrack entries of UDP frontends: %w", err) }
	var tuples []tuple
	for kind, list := range map[int][]uint16{nl.CTA_PROTO_DST_PORT: asked, nl.CTA_PROTO_SRC_PORT: asking} {
		for _, port := range sortedSet(list) {
			tuples = append(tuples, tuple{kind, port})
		}
	}
	if len(tuples) > few {
		tuples = []tuple{{}}
	}
	var n uint64
	for _, t := range tuples {
		list, err := exchange(unix.NFNL_SUBSYS_CTNETLINK, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, Family(ipv6), t.attributes())
		if err != nil {
			return n, fail(err)
		}
		for _, entry := range list {
			flow, err := parseFlow(entry)
			if err != nil {
				return n, fail(err)
			}
			if flow.Forward.Protocol != unix.IPPROTO_UDP || !f.MatchConntrackFlow(&flow) {
				continue
			}
			_, err = exchange(unix.NFNL_SUBSYS_CTNETLINK, nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, Family(ipv6), entry)
			if err != nil && !errors.Is(err, syscall.ENOENT) { // it has ended, or goes by two ports of ours
				return n, fail(err)
			}
			n++
		}
	}
	return n, nil
}

func sortedSet(list []uint16) []uint16 {
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}

// tuple says which UDP entries the kernel is to name: all, or those whose first packet had
// a port, of the kind source or destination.
type tuple struct {
	kind int // nl.CTA_PROTO_*_PORT; 0 means any port
	port uint16
}

// Of linux/netfilter/nfnetlink_conntrack.h, and the flags of net/netfilter/nf_internals.h.
const (
	ctaFilter          = 25
	ctaFilterOrigFlags = 1
	filterProtocol     = 1 << 3
	filterSourcePort   = 1 << 4
	filterPort         = 1 << 5
)

func (t tuple) attributes() []byte {
	flags := uint32(filterProtocol)
	proto := attr(nil, nl.CTA_PROTO_NUM, []byte{unix.IPPROTO_UDP})
	switch t.kind {
	case nl.CTA_PROTO_SRC_PORT:
		flags |= filterSourcePort
	case nl.CTA_PROTO_DST_PORT:
		flags |= filterPort
	}
	if t.kind != 0 {
		proto = attr(proto, t.kind, binary.BigEndian.AppendUint16(nil, t.port))
	}
	b := attrNested(nil, nl.CTA_TUPLE_ORIG, attrNested(nil, nl.CTA_TUPLE_PROTO, proto))
	return attrNested(b, ctaFilter, attr(nil, ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, flags)))
}

// parseFlow returns who speaks with whom in an entry, in b's memory.
func parseFlow(b []byte) (flow netlink.ConntrackFlow, err error) {
	err = eachAttr(b, func(kind uint16, v []byte) {
		switch kind {
		case nl.CTA_TUPLE_ORIG:
			parseTuple(v, &flow.Forward)
		case nl.CTA_TUPLE_REPLY:
			parseTuple(v, &flow.Reverse)
		}
	})
	return flow, err
}

// parseTuple reads one direction of a flow.
func parseTuple(b []byte, t *netlink.IPTuple) {
	eachAttr(nested(b, nl.CTA_TUPLE_IP), func(kind uint16, v []byte) {
		switch kind {
		case nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC:
			t.SrcIP = v
		case nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST:
			t.DstIP = v
		}
	})
	eachAttr(nested(b, nl.CTA_TUPLE_PROTO), func(kind uint16, v []byte) {
		switch {
		case kind == nl.CTA_PROTO_NUM && len(v) == 1:
			t.Protocol = v[0]
		case kind == nl.CTA_PROTO_SRC_PORT && len(v) == 2:
			t.SrcPort = binary.BigEndian.Uint16(v)
		case kind == nl.CTA_PROTO_DST_PORT && len(v) == 2:
			t.DstPort = binary.BigEndian.Uint16(v)
		}
	})
}
