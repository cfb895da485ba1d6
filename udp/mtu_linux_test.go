package udp

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// narrow makes a pod that is reached through another node, whose link to it takes smaller packets than ours.
func narrow(t *testing.T, mtu int) (node, far *testbed.Host) {
	t.Helper()
	tb := testbed.NewT(t, testbed.Config{RemotePods: 1, Here: true})
	set := []string{"link", "set", "mtu", fmt.Sprint(mtu), "dev"}
	tb.RemoteNode.Run(t, "ip", append(set, "cni0")...)
	tb.RemotePods[0].Run(t, "ip", append(set, "eth0")...)
	return tb.Node, tb.RemotePods[0]
}

// TestSmallMTU: a datagram that is larger than a link behind a router takes arrives, both ways. With IPv4 it is the
// router that splits it; with IPv6 this host, which the first one tells the size.
func TestSmallMTU(t *testing.T) {
	node, far := narrow(t, 1280)
	q := string(bytes.Repeat([]byte("0123456789"), 140))
	for _, ipv6 := range []bool{false, true} {
		var b *backend
		far.DoT(t, func() error { b = echo(t, far.At(ipv6, 0).String()); return nil })
		here := node.At(ipv6, 0).String()
		to := startProxyAt(t, 1, nil, here, b.addr)
		from := startProxyAt(t, 1, nil, here, echo(t, here).addr)
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
