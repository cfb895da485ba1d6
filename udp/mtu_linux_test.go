package udp

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// narrow makes a host that is reached through a router, whose link to it takes smaller packets than ours.
//
//	here: 10.1.0.1, fd01::1    router    far: 10.2.0.2, fd02::2
func narrow(t *testing.T, mtu int) (far *testbed.Host) {
	t.Helper()
	here, hosts := testbed.HereT(t), testbed.NewHostsT(t, "router", "far")
	router, far := hosts[0], hosts[1]
	end := func(h *testbed.Host, name string, addrs ...string) testbed.End {
		e := testbed.End{Host: h, Name: name}
		for _, a := range addrs {
			e.Addrs = append(e.Addrs, netip.MustParsePrefix(a))
		}
		return e
	}
	testbed.Check(t, testbed.Cable(end(here, "wide", "10.1.0.1/24", "fd01::1/64"), end(router, "wide", "10.1.0.2/24", "fd01::2/64")))
	testbed.Check(t, testbed.Cable(end(router, "narrow", "10.2.0.1/24", "fd02::1/64"), end(far, "narrow", "10.2.0.2/24", "fd02::2/64")))
	link, err := netlink.LinkByName("wide")
	testbed.Check(t, err)
	t.Cleanup(func() { _ = netlink.LinkDel(link) })
	for _, h := range []*testbed.Host{router, far} {
		h.DoT(t, func() error {
			link, err := netlink.LinkByName("narrow")
			if err != nil {
				return err
			}
			return netlink.LinkSetMTU(link, mtu)
		})
	}
	for _, key := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		testbed.Check(t, router.Sysctl(key, "1"))
	}
	for _, r := range []struct {
		host    *testbed.Host
		dev     string
		to, via string
	}{{here, "wide", "10.2.0.0/24", "10.1.0.2"}, {here, "wide", "fd02::/64", "fd01::2"},
		{far, "narrow", "10.1.0.0/24", "10.2.0.1"}, {far, "narrow", "fd01::/64", "fd02::1"}} {
		testbed.Check(t, r.host.Route(r.dev, netip.MustParsePrefix(r.to), netip.MustParseAddr(r.via)))
	}
	return far
}

// TestSmallMTU: a datagram that is larger than a link behind a router takes arrives, both ways. With IPv4 it is the
// router that splits it; with IPv6 this host, which the first one tells the size.
func TestSmallMTU(t *testing.T) {
	far := narrow(t, 1280)
	q := string(bytes.Repeat([]byte("0123456789"), 140))
	for _, family := range []struct{ here, far string }{{"10.1.0.1:0", "10.2.0.2:0"}, {"[fd01::1]:0", "[fd02::2]:0"}} {
		var b *backend
		far.DoT(t, func() error { b = echo(t, family.far); return nil })
		to := startProxyAt(t, 1, nil, family.here, b.addr)
		from := startProxyAt(t, 1, nil, family.here, echo(t, family.here).addr)
		near := dial(t, to.addr)
		var distant *client
		far.DoT(t, func() error { distant = dial(t, from.addr); return nil })
		for way, c := range map[string]*client{"to the backend": near, "to the client": distant} {
			c.buf = make([]byte, 2*len(q))
			if b.addr.Addr().Is4() {
				if a := c.ask(q); a != q {
					t.Errorf("%s over IPv4: %d bytes came back as %d", way, len(q), len(a))
				}
				continue
			}
			eventually(t, way+" over IPv6", func() bool {
				c.send(q)
				_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
				n, err := c.Read(c.buf)
				return err == nil && string(c.buf[:n]) == q
			})
		}
		if sent, lost := to.Stats(), from.Stats(); sent.TooLong+sent.Refused+lost.TooLong+lost.Refused != 0 {
			t.Errorf("%+v and %+v", sent, lost)
		}
	}
}
