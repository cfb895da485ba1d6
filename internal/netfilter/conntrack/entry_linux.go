package conntrack

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
	"github.com/sluice-lb/sluice/lb"
)

// ctaProtoInfoState is CTA_PROTOINFO_TCP_STATE and CTA_PROTOINFO_SCTP_STATE (linux/netfilter/nfnetlink_conntrack.h).
const ctaProtoInfoState = 1

func entries(ipv6 bool, begin func(), visit func(*Entry)) error {
	e := new(Entry)
	const get = nl.IPCTNL_MSG_CT_GET
	err := nfnl.Request(unix.NFNL_SUBSYS_CTNETLINK, get, unix.NLM_F_DUMP, nfnl.Family(ipv6), nil, begin,
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
