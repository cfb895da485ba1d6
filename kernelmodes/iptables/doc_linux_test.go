package iptables

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// TestDocumentedRules: the rules that the package comment refers to are those that a kernel
// holds for that Service.
func TestDocumentedRules(t *testing.T) {
	tb := testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1})
	s := lb.Service{ID: lb.ID{Namespace: "default", Name: "http", Protocol: lb.TCP}}
	s.Addresses = []lb.Address{
		{Addr: netip.MustParseAddrPort("10.96.0.80:80")},
		{Addr: netip.MustParseAddrPort("0.0.0.0:30080"), Kind: lb.NodePort},
	}
	for _, b := range []string{"10.244.1.10:8080", "10.244.2.10:8080"} {
		s.Backends = append(s.Backends, lb.Backend{Addr: netip.MustParseAddrPort(b), Ready: true, Serving: true})
	}
	v := testbed.IPTables{}
	syncOn(t, tb.Node, engineOf(v), lb.Node{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}, s)
	var have []string
	for _, table := range []string{"nat", "filter"} {
		for line := range strings.Lines(shell(t, tb.Node, v.Command()+"-save -t "+table)) {
			if strings.HasPrefix(line, "-A ") {
				have = append(have, line)
			}
		}
	}
	want, err := os.ReadFile("testdata/rules.txt")
	testbed.Check(t, err)
	if got := strings.Join(have, ""); got != string(want) {
		t.Errorf("testdata/rules.txt has:\n%s\nthe kernel holds:\n%s", want, got)
	}
}
