package agent

import (
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// TestOwnAddresses: a Service at an address of the node, or of the loopback interface, is
// reported once whatever its ports, and again when it comes back or the address is another.
func TestOwnAddresses(t *testing.T) {
	rows := make(map[string]*servicePort)
	at := func(addr string, kind lb.Kind, ports ...string) (changes []change) {
		for _, port := range ports {
			s := &lb.Service{ID: lb.ID{Namespace: "default", Name: "web", Port: port, Protocol: lb.TCP},
				Addresses: []lb.Address{{Addr: netip.MustParseAddrPort(addr), Kind: kind}}}
			if rows[port] == nil {
				rows[port] = &servicePort{service: s}
			}
			changes = append(changes, change{port: rows[port], old: nothing, now: &piece{service: s}})
		}
		return changes
	}
	gone := at("10.0.0.5:80", lb.ClusterIP, "a")
	gone[0].old, gone[0].now = gone[0].now, nothing
	a := New(Config{})
	a.local = []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("10.0.0.9")}
	for _, step := range []struct {
		what    string
		changes []change
		want    string // the address reported; empty: none
	}{
		{"another host's", at("10.96.0.1:80", lb.ClusterIP, "a"), ""},
		{"a node port", at("0.0.0.0:30080", lb.NodePort, "a"), ""},
		{"the node's, two ports", at("10.0.0.5:80", lb.ClusterIP, "a", "b"), "10.0.0.5"},
		{"the same again", at("10.0.0.5:80", lb.ClusterIP, "a"), ""},
		{"another of the node's", at("10.0.0.9:80", lb.ExternalIP, "a"), "10.0.0.9"},
		{"gone", gone, ""},
		{"back", at("10.0.0.9:80", lb.LoadBalancerIP, "a"), "10.0.0.9"},
		{"loopback", at("127.0.0.7:80", lb.ClusterIP, "a"), "127.0.0.7"},
	} {
		var attempt Attempt
		a.reportOwn(&Plan{changes: step.changes}, &attempt)
		got := ""
		if len(attempt.Own) > 0 {
			got = attempt.Own[0].Addr.String()
		}
		if got != step.want || len(attempt.Own) > 1 {
			t.Errorf("%s: reported %v, want %q", step.what, attempt.Own, step.want)
		}
	}
}
