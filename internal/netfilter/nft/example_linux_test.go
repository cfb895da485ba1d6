package nft

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// example is a table with each kind of set, hook and expression.
func example(ipv6 bool) *Table {
	ip, other, net := addr("192.0.2.1"), addr("192.0.2.2"), netip.MustParsePrefix("198.51.100.0/24")
	if ipv6 {
		ip, other, net = addr("2001:db8::1"), addr("2001:db8::2"), netip.MustParsePrefix("2001:db8:1::/48")
	}
	t := &Table{Name: "example", IPv6: ipv6, Lifetime: time.Minute}
	t.AddSet(Set{Name: "steer", Key: []Field{Address, Protocol, Port}, Data: []Field{Port}})
	t.AddSet(Set{Name: "services", Key: []Field{Address, Protocol, Port}, Verdicts: true})
	t.AddSet(Set{Name: "endpoints", Key: []Field{Mark, Mark}, Data: []Field{Address, Port}})
	t.AddSet(Set{Name: "rotation", Key: []Field{Mark, Mark}, Verdicts: true})
	t.AddSet(Set{Name: "same", Key: []Field{Address, Address}})
	t.AddSet(Set{Name: "allowed", Key: []Field{Address, Protocol, Port, Address}, Prefixes: true})
	t.AddSet(Set{Name: "inside", Key: []Field{NFProto, Address}, Prefixes: true})
	t.AddSet(Set{Name: "clients", Key: []Field{Address}, Dynamic: true, Size: 1000})
	t.Add("steer", Element{Key: Key(ip, uint8(6), uint16(80)), Data: Key(uint16(33000))}, 1)
	t.Add("services", Element{Key: Key(ip, uint8(6), uint16(81)), Data: "web"}, 1)
	for i, a := range []netip.Addr{ip, other} {
		t.Add("endpoints", Element{Key: Key(uint32(7), uint32(i)), Data: Key(a, uint16(8080))}, 1)
		t.Add("rotation", Element{Key: Key(uint32(8), uint32(i)), Data: "web-1"}, 1)
		t.Add("same", Element{Key: Key(a, a)}, 1)
	}
	t.Add("allowed", Range(net, ip, uint8(6), uint16(80)), 1)
	t.Add("inside", Range(net), 1)
	r := func() *Builder { return NewRule(ipv6) }
	nat := func(hook uint32) *Hook { return &Hook{Type: "nat", Number: hook, Priority: -105} }
	service := []Load{Destination, L4Proto, DestinationPort}
	t.SetChain("pre", nat(unix.NF_INET_PRE_ROUTING), []Rule{
		r().Map("steer", service...).Redirect().Rule("steer"), r().Goto("services", service...).Rule(""),
	})
	t.SetChain("out", nat(unix.NF_INET_LOCAL_OUT), []Rule{
		r().Map("steer", service...).DNATPort(other).Rule("steer"),
		r().ToLocal().Loopback(false).Goto("services", service...).Rule(""),
	})
	t.SetChain("web", nil, []Rule{
		r().In("clients", Source).GotoChain("web-1").Rule("default/web"),
		r().Goto("rotation", Constant(8), Rotation(2)).Rule("default/web"),
		r().Map("endpoints", Constant(7), Rotation(2)).DNAT().Rule("default/web"),
	})
	t.SetChain("web-1", nil, []Rule{
		r().Remember("clients", time.Hour, Source).DNATTo(netip.AddrPortFrom(ip, 8080)).Rule("default/web"),
	})
	t.SetChain("post", nat(unix.NF_INET_POST_ROUTING), []Rule{
		r().Translated(true).In("same", Source, Destination).Masquerade().Rule(""),
		r().Marked(0x4000, true).SetMark(0x4000, false).Masquerade().Rule(""),
	})
	t.SetChain("input", &Hook{Type: "filter", Number: unix.NF_INET_LOCAL_IN, New: true}, []Rule{
		r().New().Translated(false).Protocol(unix.IPPROTO_TCP).NotIn("allowed", append(service, Source)...).Reject(true).Rule(""),
		r().FromLocal().From(net, false).NotIn("inside", Family, Source).Begins("veth").Jump("web2").Rule(""),
		r().FromLoopback(true).Reject(false).Rule(""), r().Invalid().Drop().Rule(""),
		r().Is(DestinationPort, true, Key(uint16(80))).Accept().Rule(""),
	})
	t.SetChain("web2", nil, []Rule{r().Marked(1, false).SetMark(1, true).Return().Rule("")})
	return t
}
