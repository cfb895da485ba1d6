package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// The matrix: every kind of address x protocol x family x origin x policy x set of
// endpoints, each cell with its outcome. The endpoints of a Service are pods of the
// node ("here") and of another node ("there").

type kind string

const (
	clusterIP  kind = "cluster IP"
	nodePort   kind = "node port"
	externalIP kind = "external IP"
	lbIP       kind = "load-balancer IP"
)

type origin string

const (
	otherHost origin = "another host"
	theNode   origin = "the node"
	aPod      origin = "a pod"
	endpoint  origin = "an endpoint itself"
	farAway   origin = "an endpoint on another node" // itself the only one of one-there
)

type endpoints string

const (
	many        endpoints = "many"        // pod-0 and pod-1 here, remote-pod-0 there
	oneHere     endpoints = "one-here"    // pod-0
	oneThere    endpoints = "one-there"   // remote-pod-0
	none        endpoints = "none"        //
	terminating endpoints = "terminating" // those of many, all serving while they terminate

	// Beyond what was asked for: where policy and termination meet.
	leavingThere endpoints = "leaving-there" // remote-pod-0, serving while it terminates
	leavingHere  endpoints = "leaving-here"  // pod-0, serving while it terminates, and remote-pod-0, ready
)

// outcome is who may answer, or one of refused and dropped.
type outcome string

const (
	all     outcome = "pod-0 pod-1 remote-pod-0"
	here    outcome = "pod-0 pod-1"
	pod0    outcome = "pod-0"
	remote0 outcome = "remote-pod-0"
	refused outcome = "refused"
	dropped outcome = "dropped"
)

// outcomes is the whole table: what becomes of a client by the policy that holds
// for the address (internalTrafficPolicy for cluster IPs, externalTrafficPolicy
// for all others), the endpoints, and where it is. Protocol and family make no
// difference, and the kinds none but by their policy and as below.
//
// With policy Local, a client on this node that asks an external kind of address
// is short-circuited: it gets any endpoint (KEP-1669's and kube-proxy's rule).
//
// Every cell is asked. What has no cell of its own, and why:
//   - A Service whose two policies differ: each kind of address has one of them, and
//     the cells have each kind with each.
//   - "An endpoint itself" where pod-0 is none (one-there, none, leaving-there): it is a
//     pod as any other, and is asked from all the same. The one of one-there asks from
//     its own node.
//   - One endpoint that terminates here, alone: many of them are in "terminating".
//   - Endpoints that neither are ready nor serve: they are the same as none, or as not
//     there, which the scripts of lb hold (eligible).
//   - SCTP, and node ports at loopback and at single addresses, which not every mode
//     has: see TestSCTP, TestLocalhostNodePorts and TestNodePortAddresses.
var outcomes = map[string]map[endpoints]outcome{
	"Cluster": {many: all, oneHere: pod0, oneThere: remote0, none: refused, terminating: all, leavingThere: remote0, leavingHere: remote0},
	"Local":   {many: here, oneHere: pod0, oneThere: dropped, none: refused, terminating: here, leavingThere: dropped, leavingHere: pod0},
}

func expected(k kind, from origin, policy string, e endpoints) outcome {
	if k != clusterIP && policy == "Local" && from != otherHost && from != farAway {
		policy = "Cluster"
	}
	return outcomes[policy][e]
}

// keepsSource reports whether the endpoint sees the client's own address, which is that
// of the node otherwise. In user space it never does. In the kernel, as with
// kube-proxy, what comes from elsewhere must be answered through this node, unless
// policy Local keeps it here; and a pod of this node is answered through it anyway. An
// endpoint that gets to itself sees the node in any case.
func keepsSource(mode string, k kind, from origin, policy string) bool {
	switch {
	case mode == "userspace", mode == "winuserspace":
		return false
	case k == clusterIP:
		return from == aPod || from == endpoint
	}
	return policy == "Local"
}

func isOf(h *testbed.Host, addr string) bool {
	return addr == h.Addr4.String() || addr == h.Addr6.String()
}

// cell is one Service of the matrix, in one protocol and family.
type cell struct {
	n         int // numbers addresses and ports
	protocol  string
	v6        bool
	policy    string
	endpoints endpoints
}

func (c cell) name() string {
	family := "ipv4"
	if c.v6 {
		family = "ipv6"
	}
	return strings.ToLower(fmt.Sprintf("%s-%s-%s-%s", c.protocol, family, c.policy, c.endpoints))
}

// address returns where a client asks for the cell's Service.
func (c cell) address(l *lab.Lab, k kind) netip.AddrPort {
	prefix := map[kind]string{clusterIP: "10.96.1.", externalIP: "198.51.100.", lbIP: "203.0.113."}[k]
	if c.v6 {
		prefix = map[kind]string{clusterIP: "2001:db8:96::1:", externalIP: "2001:db8:51::", lbIP: "2001:db8:113::"}[k]
	}
	if k == nodePort {
		node := l.Node.Addr4
		if c.v6 {
			node = l.Node.Addr6
		}
		return netip.AddrPortFrom(node, uint16(30000+c.n))
	}
	return netip.AddrPortFrom(netip.MustParseAddr(prefix+fmt.Sprint(c.n)), 80)
}

func (c cell) manifests(l *lab.Lab) []string {
	ip := func(k kind) string { return c.address(l, k).Addr().String() }
	family := "IPv4"
	if c.v6 {
		family = "IPv6"
	}
	docs := []string{fmt.Sprintf(`apiVersion: v1
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
`, c.name(), ip(clusterIP), ip(clusterIP), family, ip(externalIP), c.policy, c.policy, c.protocol, 30000+c.n, ip(lbIP))}
	docs = append(docs, fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: %s-1\n  labels:\n    kubernetes.io/service-name: %s\n"+
		"addressType: %s\nports:\n- port: 8080\n  protocol: %s\nendpoints: %s\n", c.name(), c.name(), family, c.protocol, c.endpointList(l)))
	return docs
}

func (c cell) endpointList(l *lab.Lab) string {
	hosts := map[endpoints][]*testbed.Host{
		many: {l.Pods[0], l.Pods[1], l.RemotePods[0]}, oneHere: {l.Pods[0]}, oneThere: {l.RemotePods[0]},
		terminating: {l.Pods[0], l.Pods[1], l.RemotePods[0]}, leavingThere: {l.RemotePods[0]}, leavingHere: {l.Pods[0], l.RemotePods[0]},
	}[c.endpoints]
	if len(hosts) == 0 {
		return "[]"
	}
	s := ""
	for _, h := range hosts {
		a, node := h.Addr4, "node"
		if c.v6 {
			a = h.Addr6
		}
		if h == l.RemotePods[0] {
			node = "remote-node"
		}
		s += fmt.Sprintf("\n- addresses: [%q]\n  nodeName: %s\n", a, node)
		if c.endpoints == terminating || c.endpoints == leavingThere || c.endpoints == leavingHere && h == l.Pods[0] {
			s += "  conditions: {ready: false, serving: true, terminating: true}\n"
		}
	}
	return s
}

// dropSilence is how long nothing must be heard for a drop to be one: longer than a dead
// pick. Where an answer is expected it is awaited for as long as it takes.
const dropSilence = 1500 * time.Millisecond

// askOnce asks as a client would and says what became of it.
func askOnce(from *testbed.Host, protocol string, addr netip.AddrPort) (answer string) {
	return askWithin(from, protocol, addr, dropSilence)
}

// askWithin is askOnce with dropped for nothing within silence.
func askWithin(from *testbed.Host, protocol string, addr netip.AddrPort, silence time.Duration) (answer string) {
	d := func(err error) string {
		var timeout net.Error
		switch {
		case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
			return string(refused)
		case errors.As(err, &timeout) && timeout.Timeout():
			return string(dropped)
		}
		return err.Error()
	}
	ctx, cancel := context.WithTimeout(context.Background(), silence)
	defer cancel()
	c, err := from.Dial(ctx, strings.ToLower(protocol), addr.String())
	if err != nil {
		return d(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(silence))
	if protocol == "UDP" {
		// On the node itself the kernel says EPERM of what OUTPUT rejects as of what it
		// drops; only the former leaves an ICMP error to be read.
		if _, err := c.Write([]byte("?")); err != nil && !errors.Is(err, syscall.EPERM) {
			return d(err)
		}
	}
	buf := make([]byte, 64)
	n, err := c.Read(buf)
	if err != nil {
		return d(err)
	}
	return strings.TrimSpace(string(buf[:n]))
}

// expectedDirect is expected in mode winuserspace, where nothing can be dropped before it
// is accepted: the host has the address, and answers for itself. So what a packet
// filter would drop is refused where nobody listens. Where we listen, for the
// clients of this node, a connection from elsewhere is accepted and reset, and a
// datagram comes to nothing.
func expectedDirect(k kind, from origin, policy string, e endpoints, protocol string) outcome {
	want := expected(k, from, policy, e)
	if want == dropped && (k == clusterIP || protocol == "TCP") {
		return refused
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
	if mode == "winuserspace" {
		l.WinUserspace()
		defer untouched(l)
	}
	for _, pod := range append(slices.Clone(l.Pods), l.RemotePods...) {
		testbed.Keep(t)(pod.Peer("tcp", ":8080"))
		testbed.Keep(t)(pod.Peer("udp", netip.AddrPortFrom(pod.Addr4, 8080).String()))
		testbed.Keep(t)(pod.Peer("udp", netip.AddrPortFrom(pod.Addr6, 8080).String()))
	}
	var cells []cell
	for _, protocol := range []string{"TCP", "UDP"} {
		for _, v6 := range []bool{false, true} {
			for _, policy := range []string{"Cluster", "Local"} {
				for _, e := range []endpoints{many, oneHere, oneThere, none, terminating, leavingThere, leavingHere} {
					c := cell{len(cells) + 1, protocol, v6, policy, e}
					cells = append(cells, c)
					l.Write(c.name()+".yaml", c.manifests(l)...)
				}
			}
		}
	}
	l.Write("node.yaml", nodeManifest+fmt.Sprintf("status:\n  addresses: [{type: InternalIP, address: %s}, {type: InternalIP, address: %q}]\n",
		l.Node.Addr4, l.Node.Addr6)) // where mode nftables has node ports
	l.Start("--hostname-override", "node", "--proxy-mode", mode)

	hosts := map[origin]*testbed.Host{otherHost: l.Client, theNode: l.Node, aPod: l.Pods[2], endpoint: l.Pods[0], farAway: l.RemotePods[0]}
	const rounds = 2 // of all endpoints that may answer
	atOnce := 64     // clients
	if runtime.NumCPU() == 1 {
		atOnce = 16 // who waits for the core is not to be taken for dropped
	}
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for _, c := range cells {
		for _, k := range []kind{clusterIP, nodePort, externalIP, lbIP} {
			for from, host := range hosts {
				wg.Go(func() {
					slots <- struct{}{}
					defer func() { <-slots }()
					want := expected(k, from, c.policy, c.endpoints)
					if mode == "winuserspace" {
						want = expectedDirect(k, from, c.policy, c.endpoints, c.protocol)
					}
					silence := testbed.Patience
					if want == dropped {
						silence = dropSilence
					}
					for range max(1, rounds*len(strings.Fields(string(want)))) {
						got, source, _ := strings.Cut(askWithin(host, c.protocol, c.address(l, k), silence), " ")
						if source != "" && keepsSource(mode, k, from, c.policy) != isOf(host, source) && from != theNode && got != host.Name {
							t.Errorf("%s of %s asked from %s: %s sees %s; want the client's own address: %v", k, c.name(), from, got, source, keepsSource(mode, k, from, c.policy))
						}
						if !slices.Contains(strings.Fields(string(want)), got) {
							t.Errorf("%s of %s asked from %s: %q, want %q", k, c.name(), from, got, want)
							return
						}
					}
				})
			}
		}
	}
	wg.Wait()
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
