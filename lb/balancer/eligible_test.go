package balancer

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// The addresses of a service that is asked in all ways.
var everyAddress = []lb.Address{
	{Addr: front},
	{Addr: netip.MustParseAddrPort("10.0.0.2:80"), Local: true},
	{Addr: netip.MustParseAddrPort("10.0.0.3:80"), Kind: lb.ExternalIP},
	{Addr: netip.MustParseAddrPort("10.0.0.4:80"), Kind: lb.ExternalIP, Local: true},
	{Addr: netip.MustParseAddrPort("10.0.0.5:80"), Kind: lb.LoadBalancerIP, Local: true},
	{Addr: netip.MustParseAddrPort("0.0.0.0:30080"), Kind: lb.NodePort, Local: true},
}

var (
	podHere = netip.MustParseAddr("10.1.7.5") // in the PodCIDRs of here
	remote  = netip.MustParseAddr("203.0.113.9")
)

// backends reads lines as in scripts, for the backends 0, 1, 2 and so on.
func backends(t *testing.T, lines string) []lb.Backend {
	r := &runner{t: t}
	var all []lb.Backend
	for line := range strings.SplitSeq(strings.TrimSpace(lines), "\n") {
		if line == "" {
			continue
		}
		text := address(len(all)).String() + " " + line
		all = append(all, r.backend(parseArgs(strings.Fields(text))))
	}
	return all
}

// The cases of kube-proxy's TestCategorizeEndpoints (1.36), by behaviour. There the
// hints are compared with the node's name and zone before, which a Hint has behind
// it, and a service has the sets that its policies need, where here it has both.
func TestSets(t *testing.T) {
	const autoZones = "hint-zone=here\nhint-zone=elsewhere\nhint-zone=elsewhere\nhint-zone=here"
	for _, test := range []struct {
		name           string
		backends       string
		cluster, local []int
	}{
		{"all have zone hints and some are for here", autoZones, []int{0, 3}, nil},
		{"hints do not count with policy Local",
			"local hint-zone=here\nlocal hint-zone=elsewhere\nhint-zone=elsewhere\nhint-zone=here", []int{0, 3}, []int{0, 1}},
		{"no zone is known of the node", "hint-zone=elsewhere", []int{0}, nil},
		{"all zone hints are for elsewhere", "hint-zone=elsewhere\nhint-zone=elsewhere", []int{0, 1}, nil},
		{"one of those for here is not ready",
			"hint-zone=here\nhint-zone=elsewhere\nhint-zone=elsewhere\nunready hint-zone=here", []int{0}, nil},
		{"all of those for here are not ready",
			"unready hint-zone=here\nhint-zone=elsewhere\nhint-zone=elsewhere\nunready hint-zone=here", []int{1, 2}, nil},
		{"one has no zone hint", "hint-zone=here\nhint-zone=elsewhere\nready\nhint-zone=here", []int{0, 1, 2, 3}, nil},
		{"one that is not ready has no zone hint", "hint-zone=here\nhint-zone=elsewhere\nunready\nterminating", []int{0}, nil},
		{"node hints come before zone hints",
			"hint-node=here hint-zone=here\nhint-node=elsewhere hint-zone=elsewhere\nhint-node=elsewhere hint-zone=here", []int{0}, nil},
		{"one has no hint of either kind",
			"hint-node=here hint-zone=here\nready\nhint-node=elsewhere hint-zone=here", []int{0, 1, 2}, nil},
		{"one has no node hint, but all have zone hints",
			"hint-node=here hint-zone=here\nhint-zone=here\nhint-node=elsewhere hint-zone=elsewhere", []int{0, 1}, nil},
		{"no node hint is for here, but zone hints are",
			"hint-node=elsewhere hint-zone=here\nhint-node=elsewhere hint-zone=elsewhere\nhint-node=elsewhere hint-zone=here", []int{0, 2}, nil},
		{"all hints are for elsewhere", "hint-node=elsewhere hint-zone=elsewhere\nhint-node=elsewhere hint-zone=elsewhere", []int{0, 1}, nil},
		{"the set of policy Local is not a part of the other",
			"local hint-zone=here\nlocal hint-zone=elsewhere\nhint-zone=here\nhint-zone=elsewhere", []int{0, 2}, []int{0, 1}},
		{"hints of terminating ones do not count", "terminating hint-zone=here\nterminating hint-zone=elsewhere", []int{0, 1}, nil},
		{"none", "", nil, nil},
		{"all remote", "ready\nready", []int{0, 1}, nil},
		{"all local", "local\nlocal", []int{0, 1}, []int{0, 1}},
		{"some local", "local\nready", []int{0, 1}, []int{0}},
		{"none ready", "unready\nunready", nil, nil},
		{"one not ready", "unready local", nil, nil},
		{"some ready", "unready\nready", []int{1}, nil},
		{"all terminating", "terminating local\nterminating", []int{0, 1}, []int{0}},
		{"all remote and terminating", "terminating\nterminating", []int{0, 1}, nil},
		{"remote ready, local terminating", "ready\nunready local\nterminating local\nterminating", []int{0}, []int{2}},
		{"local ready, all others terminating", "local\nterminating local\nterminating", []int{0}, []int{0}},
		{"stopped serving", "stopped local\nstopped", nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := echo()
			s.Addresses, s.Backends = everyAddress, backends(t, test.backends)
			checkSet(t, "cluster set", s.Eligible(), test.cluster)
			checkSet(t, "local set", s.EligibleLocal(), test.local)
			b := balancing(t, s)
			for i, a := range everyAddress {
				asked := a.Addr
				if i == len(everyAddress)-1 {
					asked = netip.MustParseAddrPort("198.51.100.7:30080")
				}
				inside, outside := s.Verdicts(a)
				for _, from := range []struct {
					client  netip.Addr
					local   bool // gets the local set
					verdict lb.Verdict
				}{
					{podHere, a.Local && a.Kind == lb.ClusterIP, inside},
					{remote, a.Local, outside},
				} {
					want := test.cluster
					if from.local {
						want = test.local
					}
					f := Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: asked}, Client: from.client}
					checkPicks(t, b, f, want, len(test.cluster) > 0, from.verdict)
				}
			}
		})
	}
}

func checkSet(t *testing.T, name string, got []lb.Backend, want []int) {
	t.Helper()
	var wanted []netip.AddrPort
	for _, i := range want {
		wanted = append(wanted, address(i))
	}
	var addrs []netip.AddrPort
	for _, b := range got {
		addrs = append(addrs, b.Addr)
	}
	if !slices.Equal(addrs, wanted) {
		t.Errorf("%s: got %v, want %v", name, addrs, wanted)
	}
}

// checkPicks checks that f goes to each of these backends in turn, or is not served
// for the right reason: because there is none at all, or none here.
func checkPicks(t *testing.T, b *Balancer, f Flow, want []int, any bool, verdict lb.Verdict) {
	t.Helper()
	if len(want) == 0 {
		reason, wantVerdict := ErrNoBackend, lb.Refuse
		if any {
			reason, wantVerdict = ErrNoLocalBackend, lb.Drop
		}
		if _, err := b.Pick(f); !errors.Is(err, reason) || verdict != wantVerdict {
			t.Errorf("%s from %s: got %v and verdict %s, want %v and %s", f.Frontend, f.Client, err, verdict, reason, wantVerdict)
		}
		return
	}
	if verdict != lb.Serve {
		t.Errorf("%s from %s: verdict %s, want serve", f.Frontend, f.Client, verdict)
	}
	count := map[netip.AddrPort]int{}
	for range 2 * len(want) {
		c := mustPick(t, b, f)
		count[c.Backend()]++
		c.Done(nil)
	}
	for _, i := range want {
		if count[address(i)] != 2 {
			t.Errorf("%s from %s: picked %v in two rounds of %v", f.Frontend, f.Client, count, want)
		}
	}
}
