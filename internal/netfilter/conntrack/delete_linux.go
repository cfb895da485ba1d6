package conntrack

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
	"github.com/sluice-lb/sluice/lb"
)

func deleteFlows(w *Which, choose func(*Entry) bool) (uint64, error) {
	ports := make(map[uint16]bool)
	for f := range w.Frontends {
		ports[f.Port()] = true
	}
	all := lookup{protocol: netfilter.ProtocolNumber(w.Protocol), without: w.Without}
	var lookups []lookup
	for port := range ports {
		l := all
		l.kind, l.port = nl.CTA_PROTO_DST_PORT, port
		lookups = append(lookups, l)
		if w.Answers {
			l.kind = nl.CTA_PROTO_SRC_PORT
			lookups = append(lookups, l)
		}
	}
	if len(lookups) == 0 {
		return 0, nil
	}
	if oneWalk(len(lookups)) {
		lookups = []lookup{all}
	}
	var n uint64
	for _, l := range lookups {
		deleted, err := l.delete(w.IPv6, choose)
		if n += deleted; err != nil {
			return n, fmt.Errorf("delete conntrack entries of %s frontends: %w", w.Protocol, err)
		}
	}
	return n, nil
}

// oneWalk reports whether one walk through conntrack's table that names every flow of a protocol
// costs less than several that name few. Measured on Linux 6.18: a bucket of the table takes
// 37 ns, an entry that is passed by 5 times as much, and one that is named 65 times.
func oneWalk(walks int) bool {
	entries, err := netfilter.ReadNumber(sysctlDir + "/nf_conntrack_count")
	buckets, err2 := netfilter.ReadNumber(sysctlDir + "/nf_conntrack_buckets")
	if err != nil || err2 != nil {
		return walks > 8 // as many as cost less with a small table that is full
	}
	return (walks-1)*(buckets+5*entries) > 65*entries
}

func deleteUnreplied(ipv6 bool, tcp, sctp []netip.AddrPort) (n uint64, err error) {
	var local map[netip.Addr]bool
	if slices.ContainsFunc(slices.Concat(tcp, sctp), func(f netip.AddrPort) bool { return f.Addr().IsUnspecified() }) {
		if local, err = netfilter.LocalAddrs(); err != nil {
			return 0, err
		}
	}
	for protocol, frontends := range map[uint8][]netip.AddrPort{unix.IPPROTO_TCP: tcp, unix.IPPROTO_SCTP: sctp} {
		asked, ports := make(map[netip.AddrPort]bool), make(map[uint16]bool)
		l := lookup{protocol: protocol, without: SeenReply | DstTranslated}
		for _, f := range frontends {
			l.port = f.Port()
			asked[f], ports[l.port] = true, true
		}
		switch len(ports) {
		case 0:
			continue
		case 1:
			l.kind = nl.CTA_PROTO_DST_PORT
		}
		deleted, err2 := l.delete(ipv6, func(e *Entry) bool {
			to := e.Dst.Addr()
			return e.unreplied() && e.Replies == e.Dst && (asked[e.Dst] ||
				local[to] && !to.IsLoopback() && asked[netip.AddrPortFrom(netfilter.Unspecified(ipv6), e.Dst.Port())])
		})
		n, err = n+deleted, errors.Join(err, err2)
	}
	if err != nil {
		err = fmt.Errorf("delete unreplied conntrack entries: %w", err)
	}
	return n, err
}

// lookup says which entries the kernel is to name: those of a protocol, all or those whose
// first packet had a port, of the kind source or destination, without some bits of status. The
// zero value names every entry.
type lookup struct {
	protocol uint8
	kind     int // nl.CTA_PROTO_*_PORT; 0 means any port
	port     uint16
	without  Status
}

// Of linux/netfilter/nfnetlink_conntrack.h, and the flags of net/netfilter/nf_internals.h.
const (
	ctaFilter          = 25
	ctaFilterOrigFlags = 1
	filterProtocol     = 1 << 3
	filterSourcePort   = 1 << 4
	filterPort         = 1 << 5

	ctaStatusMask = 26
)

func (l lookup) attributes() []byte {
	if l == (lookup{}) {
		return nil
	}
	flags := uint32(filterProtocol)
	proto := nfnl.Attr(nil, nl.CTA_PROTO_NUM, []byte{l.protocol})
	switch l.kind {
	case nl.CTA_PROTO_SRC_PORT:
		flags |= filterSourcePort
	case nl.CTA_PROTO_DST_PORT:
		flags |= filterPort
	}
	if l.kind != 0 {
		proto = nfnl.Attr(proto, l.kind, nl.BEUint16Attr(l.port))
	}
	b := nfnl.AttrNested(nil, nl.CTA_TUPLE_ORIG, nfnl.AttrNested(nil, nl.CTA_TUPLE_PROTO, proto))
	if l.without != 0 {
		b = nfnl.Attr(b, nl.CTA_STATUS, nl.BEUint32Attr(0))
		b = nfnl.Attr(b, ctaStatusMask, nl.BEUint32Attr(uint32(l.without)))
	}
	return nfnl.AttrNested(b, ctaFilter, nfnl.Attr(nil, ctaFilterOrigFlags, nl.Uint32Attr(flags)))
}

// delete deletes those entries that are chosen, and returns their number.
func (l lookup) delete(ipv6 bool, choose func(*Entry) bool) (uint64, error) {
	chosen, err := l.list(ipv6, choose)
	if err != nil {
		return 0, err
	}
	return deleteEntries(ipv6, chosen)
}

// list returns those entries that are chosen. Only they are held in memory: the kernel may
// name many more, before 5.15 every connection of TCP.
func (l lookup) list(ipv6 bool, choose func(*Entry) bool) (chosen [][]byte, err error) {
	e := new(Entry)
	begin := func() { chosen = nil }
	err = nfnl.Request(unix.NFNL_SUBSYS_CTNETLINK, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, nfnl.Family(ipv6),
		l.attributes(), begin, func(m nfnl.Value) {
			*e = parseEntry(m)
			if (l == (lookup{}) || netfilter.ProtocolNumber(e.Protocol) == l.protocol) && choose(e) {
				chosen = append(chosen, slices.Clone(m.Bytes))
			}
		})
	return chosen, err
}

func deleteChosen(ipv6 bool, choose func(*Entry) bool) (uint64, error) {
	n, err := lookup{}.delete(ipv6, choose)
	if err != nil {
		err = fmt.Errorf("delete conntrack entries: %w", err)
	}
	return n, err
}

// deleteEntries returns how many it has deleted. One that cannot be does not keep the others.
func deleteEntries(ipv6 bool, list [][]byte) (n uint64, err error) {
	failed := 0
	done, err2 := nfnl.RequestAll(unix.NFNL_SUBSYS_CTNETLINK, nl.IPCTNL_MSG_CT_DELETE, nfnl.Family(ipv6), list,
		func(why error) {
			if errors.Is(why, syscall.ENOENT) { // it has ended, or has two of the ports
				return
			}
			failed++
			err = cmp.Or(err, why) // the first will do, of as many as there may be entries
		})
	return uint64(done - failed), cmp.Or(err, err2)
}

// unreplied reports whether all that has been seen of a connection is its first packet.
func (e *Entry) unreplied() bool {
	if e.Answered() || e.Translated() {
		return false
	}
	if e.Protocol == lb.SCTP { // after an INIT: newer kernels, older ones
		return e.State == SCTPClosed || e.State == SCTPCookieWait
	}
	return e.Protocol == lb.TCP && e.State == TCPSynSent
}
