package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// The matrix: every kind of address x protocol x family x origin x policy x set of
// endpoints, each cell with who answers and whose address the endpoint sees.

const (
	otherHost = "another host"
	theNode   = "the node"
	aPod      = "a pod"
	endpoint  = "an endpoint itself"
)

const (
	all     = "pod-0 pod-1 remote-pod-0"
	here    = "pod-0 pod-1"
	refused = "refused"
	dropped = "dropped"
)

// outcomes is what becomes of a client by the policy that holds and the endpoints.
var outcomes = map[string]map[string]string{
	"Cluster": {"many": all, "one-here": "pod-0", "one-there": "remote-pod-0", "none": refused, "terminating": all},
	"Local":   {"many": here, "one-here": "pod-0", "one-there": dropped, "none": refused, "terminating": here},
}

func expected(kind lb.Kind, from, policy, endpoints string) string {
	if kind != lb.ClusterIP && policy == "Local" && from != otherHost {
		policy = "Cluster"
	}
	return outcomes[policy][endpoints]
}

// preserved says whether an endpoint sees the address of its client, and not one of the
// node's: as with kube-proxy, if a pod asks a cluster IP, and if the policy of an
// external address is Local. The node is the node anyway.
func preserved(kind lb.Kind, from, policy string) bool {
	if kind == lb.ClusterIP {
		return from == aPod || from == endpoint
	}
	return policy == "Local" && from != theNode
}

// cell is one Service of the matrix.
type cell struct {
	n                 int
	protocol          lb.Protocol
	v6                bool
	policy, endpoints string
}

func (c cell) String() string {
	return strings.ToLower(fmt.Sprintf("%s-%s-%s-%s", c.protocol, testbed.Family(c.v6), c.policy, c.endpoints))
}

func (c cell) address(l *Lab, k lb.Kind) netip.AddrPort {
	if k == lb.NodePort {
		return netip.AddrPortFrom(l.Node.Addr(c.v6), uint16(30000+c.n))
	}
	return netip.AddrPortFrom(testbed.VIP(c.v6, int(k)<<8+c.n), 80)
}

var kinds = []lb.Kind{lb.ClusterIP, lb.NodePort, lb.ExternalIP, lb.LoadBalancerIP}

func (c cell) service(l *Lab) lb.Service {
	s := lb.Service{ID: ID(c.String(), c.protocol, c.v6)}
	for _, k := range kinds {
		at := c.address(l, k)
		if k == lb.NodePort {
			at = netip.AddrPortFrom(testbed.Unspecified(c.v6), at.Port())
		}
		Also(&s, at, k, c.policy == "Local")
	}
	many := []*testbed.Host{l.Pods[0], l.Pods[1], l.RemotePods[0]}
	hosts := map[string][]*testbed.Host{
		"many": many, "one-here": many[:1], "one-there": many[2:], "terminating": many,
	}[c.endpoints]
	for _, h := range hosts {
		b := Backend(h, c.v6, 8080)
		if c.endpoints == "terminating" {
			b.Ready, b.Terminating = false, true
		}
		s.Backends = append(s.Backends, b)
	}
	return s
}

// Matrix asks every cell, and calls failed at the end if the test has failed.
func (l *Lab) Matrix(failed func()) {
	var cells []cell
	var services []lb.Service
	for _, protocol := range []lb.Protocol{lb.TCP, lb.UDP} {
		for _, v6 := range []bool{false, true} {
			for _, pod := range append(slices.Clip(l.Pods), l.RemotePods...) {
				Serve(l.T, pod, protocol, netip.AddrPortFrom(pod.Addr(v6), 8080))
			}
			for _, policy := range []string{"Cluster", "Local"} {
				for _, e := range []string{"many", "one-here", "one-there", "none", "terminating"} {
					c := cell{len(cells) + 1, protocol, v6, policy, e}
					cells = append(cells, c)
					services = append(services, c.service(l))
				}
			}
		}
	}
	l.Sync(services...)

	hosts := map[string]*testbed.Host{otherHost: l.Client, theNode: l.Node, aPod: l.Pods[2], endpoint: l.Pods[0]}
	slots := make(chan struct{}, 16) // so many clients at a time
	var wg sync.WaitGroup
	for _, c := range cells {
		for _, k := range kinds {
			for from, host := range hosts {
				wg.Go(func() {
					slots <- struct{}{}
					defer func() { <-slots }()
					l.tryCell(c, k, from, host)
				})
			}
		}
	}
	wg.Wait()
	if l.T.Failed() {
		failed()
	}
}

// tryCell asks until every endpoint that may answer can have done so.
func (l *Lab) tryCell(c cell, k lb.Kind, from string, host *testbed.Host) {
	want := strings.Fields(expected(k, from, c.policy, c.endpoints))
	client := host.Addr(c.v6)
	for range max(1, 2*len(want)) {
		got := AskFor(want[0], host, c.protocol, c.address(l, k))
		who, seen, _ := strings.Cut(got, " ")
		if !slices.Contains(want, who) {
			l.T.Errorf("%s of %s asked from %s: %q, want one of %q", k, c, from, got, want)
			return
		}
		if seen == "" {
			continue
		}
		same := seen == client.String()
		if want := preserved(k, from, c.policy) && who != host.Name; same != want && host != l.Node {
			l.T.Errorf("%s of %s asked from %s: %s sees %s, the client is %s; want the same: %v",
				k, c, from, who, seen, client, want)
			return
		}
		if a := netip.MustParseAddr(seen); !same && !slices.Contains(l.About.Addresses, a) {
			l.T.Errorf("%s of %s asked from %s: %s sees %s, which is not of the node", k, c, from, who, seen)
			return
		}
	}
}
