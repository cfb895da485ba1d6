package nftables

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// named are what a line of Explain names that the kernel has: sets, chains and elements.
var named = regexp.MustCompile(`(?:set|map|chain|goto|jump) ([a-z]+(?:-[a-z]+)*(?:-[0-9A-Z]{16})?)|: ([^:]* : goto \S+)`)

// TestExplain: what is said of addresses is what the kernel has been given, whether a process is asked or not.
func TestExplain(t *testing.T) {
	h := testbed.NewHostsT(t, "node")[0]
	here := lb.Node{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}
	web := lb.Service{ID: lab.ID("web", lb.TCP, false), Addresses: []lb.Address{
		{Addr: netip.MustParseAddrPort("10.96.0.80:80")}, {Addr: lab.Anywhere(false, 30080), Kind: lb.NodePort, Local: true},
		{Addr: netip.MustParseAddrPort("198.51.100.1:80"), Kind: lb.LoadBalancerIP, Local: true,
			Sources: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}}
	sticky := lb.Service{ID: lab.ID("sticky", lb.UDP, false), AffinityTimeout: int64(time.Hour),
		Addresses: []lb.Address{{Addr: netip.MustParseAddrPort("10.96.0.81:53")}}}
	many := lb.Service{ID: lab.ID("many", lb.TCP, false),
		Addresses: []lb.Address{{Addr: netip.MustParseAddrPort("10.96.0.82:80")},
			{Addr: netip.MustParseAddrPort("198.51.100.2:80"), Kind: lb.ExternalIP}}}
	none := lb.Service{ID: lab.ID("none", lb.TCP, false),
		Addresses: []lb.Address{{Addr: netip.MustParseAddrPort("10.96.0.83:80")}}}
	for i := range 20 {
		b := lb.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 2, byte(i + 10)}), 8080), Ready: true,
			Serving: true, Local: i == 1}
		if many.Backends = append(many.Backends, b); i < 2 {
			web.Backends, sticky.Backends = append(web.Backends, b), append(sticky.Backends, b)
		}
	}
	for _, ask := range []Ask{{}, {First: 100, Count: 2, Mask: 0xffff0000}} {
		e := &Engine{Ask: ask}
		d := lab.Whole(web, sticky, many, none)
		h.DoT(t, func() error {
			if e.Probe(t.Context()) != nil {
				e.Ask.Target = true // the kernel has no queues of nf_tables
			}
			return e.Sync(t.Context(), d, here)
		})
		list := h.Run(t, "nft", "list", "table", e.table())
		for _, x := range []struct {
			s    *lb.Service
			at   int
			want []string
		}{
			{&web, 0, []string{"map clusters: 10.96.0.80 . tcp . 80 : goto outside, to be masqueraded unless it comes from a pod " +
				"of this node (10.244.1.0/24)", "map services: 10.96.0.80 . tcp . 80 : goto svc-",
				"in turn (numgen inc mod 2) by a map endpoints-..: dnat to 10.244.2.10:8080, 10.244.2.11:8080"}},
			{&web, 1, []string{"map node-ports: tcp . 30080 : goto ext-", "from pods of this node (10.244.1.0/24) goto svc-",
				"from elsewhere goto svl-", "by a map endpoints-..: dnat to 10.244.2.11:8080"}},
			{&web, 2, []string{"map services: 198.51.100.1 . tcp . 80 : goto fw-", "only from the ranges (192.0.2.0/24) goto ext-",
				"map unserved, for what has got no endpoint: 198.51.100.1 . tcp . 80 : goto drop"}},
			{&sticky, 0, []string{"a client that set af-", ": dnat to 10.244.2.11:8080", "by a map rotation-..: dnat to"}},
			{&many, 1, []string{"to be masqueraded, goto svc-", "numgen inc mod 20", "10.244.2.25:8080, and 4 more"}},
			{&none, 0, []string{"map unserved, for what has got no endpoint: 10.96.0.83 . tcp . 80 : goto reject"}},
		} {
			lines := e.Explain(x.s, x.s.Addresses[x.at], here)
			text := strings.Join(lines, "\n")
			if ask.Count > 0 {
				x.want = append(x.want, "the process is asked, by queues 100 to 101")
			}
			for _, want := range append(x.want, "table ip "+e.table()) {
				if !strings.Contains(text, want) {
					t.Errorf("of %s there is said\n%s\nwhich lacks %q", x.s.Addresses[x.at].Addr, text, want)
				}
			}
			for _, line := range lines[1:] {
				for _, m := range named.FindAllStringSubmatch(line, -1) {
					name := strings.TrimSuffix(m[1]+m[2], ",")
					if name != "endpoints" && name != "rotation" && !strings.Contains(list, name) {
						t.Errorf("%q names %q, which the kernel does not have:\n%s", line, name, list)
					}
				}
			}
		}
	}
}
