package sctp

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// Packets that fit the client's path and not the backend's arrive all the same,
// whether the node knows of it or a router reports it.
func TestSmallerPath(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup func(l *lab) *testbed.Host
	}{
		{"of the node itself", func(l *lab) *testbed.Host {
			l.Node.Run(l.t, "ip", "route", "change", "10.244.1.0/24", "dev", "cni0", "src", "10.244.1.1", "mtu", "700")
			return l.Pods[0]
		}},
		{"behind a router", func(l *lab) *testbed.Host {
			l.RemoteNode.Run(l.t, "ip", "route", "change", "10.244.2.0/24", "dev", "cni0", "src", "10.244.2.1", "mtu", "700")
			return l.RemotePods[0]
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := only(t, Packet, testbed.Config{Pods: 1, RemotePods: 1}, settings{})
			backend := c.setup(l)
			accepted := l.serve(backend)
			client := l.dial(l.Client)
			server := l.accept(accepted[0])
			for i := range 3 {
				m := message{stream: uint16(i), ppid: 1, data: bytes.Repeat([]byte{byte(i + 1)}, 20000)}
				ask(t, client, server, m)
				ask(t, server, client, m)
			}
			route := l.Node.Run(t, "ip", "route", "get", backend.Addr(l.ipv6).String())
			if !strings.Contains(route, "mtu 700") {
				t.Errorf("the node's path to the backend: %s", route)
			}
			if s := l.stats(); s.SendErrors+s.BadChecksum != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}
