package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
	engines "github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

func isOf(h *testbed.Host, addr string) bool {
	return addr == h.Addr4.String() || addr == h.Addr6.String()
}

// manifests are the Service of a cell of the matrix and its EndpointSlice.
func manifests(c engines.Cell, l *lab.Lab) []string {
	ip := func(k lb.Kind) string { return c.At(l.Node, k).Addr().String() }
	family := testbed.Family(c.IPv6)
	service := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata:
  name: %s
spec:
  type: LoadBalancer
  clusterIP: %q
  clusterIPs: [%q]
  ipFamilies: [%s]
  externalIPs: [%q]
  internalTrafficPolicy: %s
  externalTrafficPolicy: %s
  ports:
  - port: 80
    protocol: %s
    nodePort: %d
status:
  loadBalancer:
    ingress:
    - ip: %q
`, c, ip(lb.ClusterIP), ip(lb.ClusterIP), family, ip(lb.ExternalIP), c.Policy, c.Policy, c.Protocol, c.NodePort(),
		ip(lb.LoadBalancerIP))
	slice := fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: %s-1\n"+
		"  labels:\n    kubernetes.io/service-name: %s\naddressType: %s\nports:\n- port: 8080\n  protocol: %s\n"+
		"endpoints:", c, c, family, c.Protocol)
	hosts, leaves := c.Endpoints(l.Testbed)
	if len(hosts) == 0 {
		slice += " []\n"
	}
	for _, h := range hosts {
		node := "node"
		if h == l.RemotePods[0] {
			node = "remote-node"
		}
		slice += fmt.Sprintf("\n- addresses: [%q]\n  nodeName: %s\n", h.Addr(c.IPv6), node)
		if leaves(h) {
			slice += "  conditions: {ready: false, serving: true, terminating: true}\n"
		}
	}
	return []string{service, slice}
}

// dropSilence is how long nothing must be heard for a drop to be one: longer than a dead
// pick.
const dropSilence = 1500 * time.Millisecond

// askOnce asks as a client would and says what became of it.
func askOnce(from *testbed.Host, protocol string, addr netip.AddrPort) (answer string) {
	return from.Ask(protocol, addr.String(), dropSilence)
}

// wantDirect returns the answer in mode winuserspace. The host has the address, so no filter drops a question: without
// a socket the host refuses it. With a socket for this node's clients, a connection from elsewhere is accepted and
// reset, and a datagram has no answer.
func wantDirect(q engines.Question) string {
	want := q.Want()
	if want == testbed.Dropped && (q.Kind == lb.ClusterIP || q.Protocol == lb.TCP) {
		return testbed.Refused
	}
	return want
}

// TestMatrix holds for each data path.
func TestMatrix(t *testing.T) {
	testbed.VM(t)
	t.Parallel()
	for _, mode := range []string{"userspace", "queue", "nftables", "iptables", "ipvs", "winuserspace"} {
		t.Run(mode, func(t *testing.T) { testMatrix(t, mode, "") })
	}
	t.Run("userspace, steered by iptables", func(t *testing.T) { testMatrix(t, "userspace", "iptables") })
}

func testMatrix(t *testing.T, mode, filter string) {
	t.Parallel()
	lab.NeedMode(t, mode)
	l := lab.New(t, testbed.Config{RemotePods: 1})
	l.By = filter
	want, keeps := engines.Question.Want, engines.Question.KeepsSource
	switch mode {
	case "winuserspace":
		l.WinUserspace()
		defer untouched(l)
		want = wantDirect
		fallthrough
	case "userspace":
		keeps = func(engines.Question) bool { return false }
	}
	for _, pod := range slices.Concat(l.Pods, l.RemotePods) {
		testbed.Keep(t)(pod.Peer("tcp", ":8080"))
		testbed.Keep(t)(pod.Peer("udp", ":8080"))
	}
	for _, c := range engines.Cells() {
		l.Write(c.String()+".yaml", manifests(c, l)...)
	}
	l.Write("node.yaml", nodeManifest+fmt.Sprintf("status:\n  addresses: [{type: InternalIP, address: %s}, "+
		"{type: InternalIP, address: %q}]\n", l.Node.Addr4, l.Node.Addr6)) // where mode nftables has node ports
	l.Start("--hostname-override", "node", "--proxy-mode", mode)
	engines.AskAll(t, l.Testbed, want, keeps)
}

const nodeManifest = `apiVersion: v1
kind: Node
metadata:
  name: node
  labels:
    topology.kubernetes.io/zone: here
spec:
  podCIDRs: [10.244.1.0/24, "2001:db8:244:1::/64"]
`
