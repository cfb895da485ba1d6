package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
	"github.com/sluice-lb/sluice/lb"
)

// ctaProtoInfoState is CTA_PROTOINFO_TCP_STATE and CTA_PROTOINFO_SCTP_STATE (linux/netfilter/nfnetlink_conntrack.h).
const ctaProtoInfoState = 1

// Conn is a socket for what is asked about entries again and again, in the network namespace of the thread that opened
// it. Any goroutine may use it. The zero value opens one for each question, in that of the calling thread.
type Conn struct{ nfnl.Conn }

// Open opens the socket.
func Open() (*Conn, error) {
	c, err := nfnl.Open()
	if err != nil {
		return nil, fmt.Errorf("open socket for conntrack: %w", err)
	}
	return &Conn{*c}, nil
}

// Find returns the entry of a flow, by the ends that its first packet had. It is not ok if there is none.
func (c *Conn) Find(protocol lb.Protocol, src, dst netip.AddrPort) (e Entry, ok bool, err error) {
	// The answer says that more is to come, which is the acknowledgement.
	err = c.Request(unix.NFNL_SUBSYS_CTNETLINK, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_ACK, nfnl.Family(dst.Addr().Is6()),
		tuple(protocol, src, dst), nil, func(m nfnl.Value) { e, ok = parseEntry(m), true })
	if err != nil && !errors.Is(err, syscall.ENOENT) {
		return e, false, fmt.Errorf("find conntrack entry: %w", err)
	}
	return e, ok, nil
}

// Delete deletes an entry, and reports whether it was there.
func (c *Conn) Delete(e *Entry) (ok bool, err error) {
	attrs := nfnl.Attr(tuple(e.Protocol, e.Src, e.Dst), nl.CTA_ID, binary.BigEndian.AppendUint32(nil, e.ID))
	err = c.Request(unix.NFNL_SUBSYS_CTNETLINK, nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK,
		nfnl.Family(e.Dst.Addr().Is6()), attrs, nil, nil)
	if err != nil && !errors.Is(err, syscall.ENOENT) {
		return false, fmt.Errorf("delete conntrack entry: %w", err)
	}
	return err == nil, nil
}

// tuple says by its first packet which flow is meant.
func tuple(protocol lb.Protocol, src, dst netip.AddrPort) []byte {
	from, to := nl.CTA_IP_V4_SRC, nl.CTA_IP_V4_DST
	if dst.Addr().Is6() {
		from, to = nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST
	}
	ip := nfnl.Attr(nfnl.Attr(nil, from, src.Addr().AsSlice()), to, dst.Addr().AsSlice())
	proto := nfnl.Attr(nil, nl.CTA_PROTO_NUM, []byte{netfilter.ProtocolNumber(protocol)})
	proto = nfnl.Attr(proto, nl.CTA_PROTO_SRC_PORT, binary.BigEndian.AppendUint16(nil, src.Port()))
	proto = nfnl.Attr(proto, nl.CTA_PROTO_DST_PORT, binary.BigEndian.AppendUint16(nil, dst.Port()))
	b := nfnl.AttrNested(nil, nl.CTA_TUPLE_IP, ip)
	return nfnl.AttrNested(nil, nl.CTA_TUPLE_ORIG, nfnl.AttrNested(b, nl.CTA_TUPLE_PROTO, proto))
}

// Entries calls visit for each entry of a family, and begin before the first, also when it starts anew since the kernel
// had to. visit must not keep the entry. begin may be nil.
func (c *Conn) Entries(ipv6 bool, begin func(), visit func(*Entry)) error {
	e := new(Entry)
	const get = nl.IPCTNL_MSG_CT_GET
	err := c.Request(unix.NFNL_SUBSYS_CTNETLINK, get, unix.NLM_F_DUMP, nfnl.Family(ipv6), nil, begin,
		func(m nfnl.Value) {
			*e = parseEntry(m)
			visit(e)
		})
	if err != nil {
		return fmt.Errorf("list conntrack entries: %w", err)
	}
	return nil
}

func parseEntry(m nfnl.Value) (e Entry) {
	for kind, v := range m.Attrs() {
		switch kind {
		case nl.CTA_TUPLE_ORIG:
			e.Src, e.Dst, e.Protocol = parseTuple(v)
		case nl.CTA_TUPLE_REPLY:
			e.Replies, _, _ = parseTuple(v)
		case nl.CTA_ID:
			e.ID = uint32(v.Uint())
		case nl.CTA_STATUS:
			e.Status = Status(v.Uint())
		case nl.CTA_PROTOINFO:
			for _, protocol := range v.Attrs() {
				e.State = State(protocol.Find(ctaProtoInfoState).Uint())
			}
		case nl.CTA_MARK:
			e.Mark = uint32(v.Uint())
		case nl.CTA_COUNTERS_ORIG:
			e.In = parseCount(v)
		case nl.CTA_COUNTERS_REPLY:
			e.Out = parseCount(v)
		case nl.CTA_TIMESTAMP:
			e.Begun, e.Ended = parseTime(v.Find(nl.CTA_TIMESTAMP_START)), parseTime(v.Find(nl.CTA_TIMESTAMP_STOP))
		case nl.CTA_TIMEOUT:
			e.Left = time.Duration(v.Uint()) * time.Second
		}
	}
	return e
}

// parseTuple reads one direction of a flow.
func parseTuple(v nfnl.Value) (src, dst netip.AddrPort, protocol lb.Protocol) {
	ip, proto := v.Find(nl.CTA_TUPLE_IP), v.Find(nl.CTA_TUPLE_PROTO)
	end := func(ipv4, ipv6, port uint16) netip.AddrPort {
		addr, ok := netip.AddrFromSlice(ip.Find(ipv4).Bytes)
		if !ok {
			addr, _ = netip.AddrFromSlice(ip.Find(ipv6).Bytes)
		}
		return netip.AddrPortFrom(addr, uint16(proto.Find(port).Uint()))
	}
	return end(nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC, nl.CTA_PROTO_SRC_PORT),
		end(nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST, nl.CTA_PROTO_DST_PORT),
		netfilter.ProtocolOf(uint8(proto.Find(nl.CTA_PROTO_NUM).Uint()))
}

func parseCount(v nfnl.Value) Count {
	return Count{v.Find(nl.CTA_COUNTERS_PACKETS).Uint(), v.Find(nl.CTA_COUNTERS_BYTES).Uint()}
}

// parseTime reads nanoseconds since 1970.
func parseTime(v nfnl.Value) time.Time {
	if len(v.Bytes) == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(v.Uint()))
}
