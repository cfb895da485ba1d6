package lab

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// The matrix: every kind of address x protocol x family x origin x policy x set of endpoints, each cell with who
// answers and whose address the endpoint sees. The endpoints of a Service are pods of the node ("here") and of another
// node ("there").

// Origins of a client.
const (
	otherHost = "another host"
	theNode   = "the node"
	aPod      = "a pod"
	endpoint  = "an endpoint itself"
	farAway   = "an endpoint on another node" // itself the only one of one-there
)

// Sets of endpoints.
const (
	many         = "many"          // pod-0 and pod-1 here, remote-pod-0 there
	oneHere      = "one-here"      // pod-0
	oneThere     = "one-there"     // remote-pod-0
	none         = "none"          //
	terminating  = "terminating"   // those of many, all serving while they terminate
	leavingThere = "leaving-there" // remote-pod-0, serving while it terminates
	leavingHere  = "leaving-here"  // pod-0, serving while it terminates, and remote-pod-0, ready
)

// outcomes is the whole table: who may answer, by the policy that holds for the address (internalTrafficPolicy for
// cluster IPs, externalTrafficPolicy for all others) and the endpoints. Protocol and family make no difference. With
// policy Local, a client on this node that asks an external kind of address gets any endpoint (KEP-1669).
//
// What has no cell of its own, and why:
//   - A Service whose two policies differ: each kind of address has one of them.
//   - One endpoint that terminates here, alone: many of them are in "terminating".
//   - Endpoints that neither are ready nor serve: they are the same as none, or as not there.
//   - SCTP, and node ports at loopback and at single addresses, which not every mode has.
var outcomes = map[string]map[string]string{
	"Cluster": {many: "pod-0 pod-1 remote-pod-0", oneHere: "pod-0", oneThere: "remote-pod-0", none: testbed.Refused,
		terminating: "pod-0 pod-1 remote-pod-0", leavingThere: "remote-pod-0", leavingHere: "remote-pod-0"},
	"Local": {many: "pod-0 pod-1", oneHere: "pod-0", oneThere: testbed.Dropped, none: testbed.Refused,
		terminating: "pod-0 pod-1", leavingThere: testbed.Dropped, leavingHere: "pod-0"},
}

// Cell is one Service of the matrix.
type Cell struct {
	N                 int // numbers addresses and ports
	Protocol          lb.Protocol
	IPv6              bool
	Policy, endpoints string
}

// Cells returns all of them.
func Cells() (out []Cell) {
	for _, p := range []lb.Protocol{lb.TCP, lb.UDP} {
		for _, v6 := range []bool{false, true} {
			for _, policy := range []string{"Cluster", "Local"} {
				for _, e := range []string{many, oneHere, oneThere, none, terminating, leavingThere, leavingHere} {
					out = append(out, Cell{len(out) + 1, p, v6, policy, e})
				}
			}
		}
	}
	return out
}

func (c Cell) String() string {
	return strings.ToLower(fmt.Sprintf("%s-%s-%s-%s", c.Protocol, testbed.Family(c.IPv6), c.Policy, c.endpoints))
}

// Kinds are those of addresses that each cell has.
var Kinds = []lb.Kind{lb.ClusterIP, lb.NodePort, lb.ExternalIP, lb.LoadBalancerIP}

// NodePort is the cell's.
func (c Cell) NodePort() uint16 { return uint16(30000 + c.N) }

// At returns where a client asks for the cell's Service on a node.
func (c Cell) At(node *testbed.Host, k lb.Kind) netip.AddrPort {
	if k == lb.NodePort {
		return node.At(c.IPv6, c.NodePort())
	}
	network := map[lb.Kind]string{lb.ClusterIP: "cluster", lb.ExternalIP: "external", lb.LoadBalancerIP: "lb"}[k]
	return At(IP(c.IPv6, network, 100<<8+c.N), 80)
}

// Endpoints returns the pods that the cell's Service has, and says of which that they serve while they terminate.
func (c Cell) Endpoints(tb *testbed.Testbed) (hosts []*testbed.Host, leaves func(*testbed.Host) bool) {
	pod, remote := tb.Pods[0], tb.RemotePods[0]
	all := []*testbed.Host{pod, tb.Pods[1], remote}
	hosts = map[string][]*testbed.Host{many: all, oneHere: {pod}, oneThere: {remote}, terminating: all,
		leavingThere: {remote}, leavingHere: {pod, remote}}[c.endpoints]
	return hosts, func(h *testbed.Host) bool {
		return c.endpoints == terminating || c.endpoints == leavingThere || c.endpoints == leavingHere && h == pod
	}
}

// Question is what a client asks a cell.
type Question struct {
	Cell
	Kind lb.Kind
	From string
	host *testbed.Host
}

func (q Question) String() string {
	return fmt.Sprintf("%s of %s asked from %s", q.Kind, q.Cell, q.From)
}

// Want returns who may answer, by their names, or testbed.Refused or Dropped.
func (q Question) Want() string {
	policy := q.Policy
	if q.Kind != lb.ClusterIP && policy == "Local" && q.From != otherHost && q.From != farAway {
		policy = "Cluster"
	}
	return outcomes[policy][q.endpoints]
}

// KeepsSource reports whether an endpoint sees the client's own address if the kernel forwards, and else that of the
// node: as with kube-proxy, what comes from elsewhere must be answered through this node, unless policy Local keeps it
// here, and a pod of this node is answered through it anyway. An endpoint that gets to itself sees the node.
func (q Question) KeepsSource() bool {
	if q.Kind == lb.ClusterIP {
		return q.From == aPod || q.From == endpoint
	}
	return q.Policy == "Local"
}

// AskAll has clients everywhere ask every cell by every kind of address, in goroutines: so often that every endpoint
// that want allows can have answered. keeps says whether these see the client.
func AskAll(t *testing.T, tb *testbed.Testbed, want func(Question) string, keeps func(Question) bool) {
	hosts := map[string]*testbed.Host{otherHost: tb.Client, theNode: tb.Node, aPod: tb.Pods[2], endpoint: tb.Pods[0],
		farAway: tb.RemotePods[0]}
	slots := make(chan struct{}, min(64, 16*runtime.NumCPU())) // who waits for a core is not to be taken for dropped
	var wg sync.WaitGroup
	for _, c := range Cells() {
		for _, k := range Kinds {
			for from, host := range hosts {
				wg.Go(func() {
					slots <- struct{}{}
					defer func() { <-slots }()
					q := Question{c, k, from, host}
					q.ask(t, c.At(tb.Node, k), strings.Fields(want(q)), keeps(q), addressesOf(tb.Node))
				})
			}
		}
	}
	wg.Wait()
}

func (q Question) ask(t *testing.T, at netip.AddrPort, want []string, keeps bool, node []netip.Addr) {
	client := q.host.Addr(q.IPv6).String()
	for range max(1, 2*len(want)) {
		got := AskFor(want[0], q.host, q.Protocol, at)
		who, seen, _ := strings.Cut(got, " ")
		if !slices.Contains(want, who) {
			t.Errorf("%s: %q, want one of %q", q, got, want)
			return
		}
		if seen == "" || q.From == theNode || who == q.host.Name {
			continue
		}
		if (seen == client) != keeps {
			t.Errorf("%s: %s sees %s, the client is %s; want the same: %v", q, who, seen, client, keeps)
			return
		}
		if a := netip.MustParseAddr(seen); seen != client && !slices.Contains(node, a) {
			t.Errorf("%s: %s sees %s, which is not of the node", q, who, seen)
			return
		}
	}
}

// dropSilence is how long nothing must be heard for a drop to be one: longer than a dead pick.
const dropSilence = 1500 * time.Millisecond

// Matrix asks every cell, and calls failed at the end if the test has failed.
func (l *Lab) Matrix(failed func()) {
	for _, pod := range slices.Concat(l.Pods, l.RemotePods) {
		Serve(l.T, pod, lb.TCP, At(testbed.Unspecified(true), 8080))
		Serve(l.T, pod, lb.UDP, At(testbed.Unspecified(true), 8080))
	}
	var services []lb.Service
	for _, c := range Cells() {
		s := lb.Service{ID: ID(c.String(), c.Protocol, c.IPv6)}
		for _, k := range Kinds {
			at := c.At(l.Node, k)
			if k == lb.NodePort {
				at = Anywhere(c.IPv6, at.Port())
			}
			Also(&s, at, k, c.Policy == "Local")
		}
		hosts, leaves := c.Endpoints(l.Testbed)
		for _, h := range hosts {
			b := Backend(h, c.IPv6, 8080)
			b.Terminating = leaves(h)
			b.Ready = !b.Terminating
			s.Backends = append(s.Backends, b)
		}
		services = append(services, s)
	}
	l.Sync(services...)
	AskAll(l.T, l.Testbed, Question.Want, Question.KeepsSource)
	if l.T.Failed() {
		failed()
	}
}
