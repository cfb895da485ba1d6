package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// served is a Service whose endpoints are pods that answer.
func served(t *testing.T, tb *testbed.Testbed, address netip.AddrPort) lb.Service {
	s := lab.Plain(false, 1)
	s.Addresses = []lb.Address{{Addr: address}}
	for _, pod := range tb.Pods {
		testbed.Keep(t)(pod.WhoTCP(":8080"))
		s.Backends = append(s.Backends, lab.Backend(pod, false, 8080))
	}
	return s
}

// TestOwnAddress: a Service at an address of the node takes none of its other ports.
func TestOwnAddress(t *testing.T) {
	t.Parallel()
	tb := testbed.NewT(t, testbed.Config{Pods: 1})
	s := served(t, tb, netip.AddrPortFrom(tb.Node.Addr4, 80))
	testbed.Keep(t)(tb.Node.WhoTCP(":22"))
	syncOn(t, tb.Node, &Engine{}, lab.Whole(s))
	for port, want := range map[uint16]string{80: tb.Pods[0].Name, 22: tb.Node.Name} {
		if got := tb.Client.Ask("tcp", netip.AddrPortFrom(tb.Node.Addr4, port).String(), testbed.Patience); got != want {
			t.Errorf("port %d of the node: %s, want %s", port, got, want)
		}
	}
}

// connecting has clients connect again and again, who must not be refused, until end is called.
func connecting(t *testing.T, tb *testbed.Testbed, to netip.AddrPort) (end func()) {
	return testbed.Repeat(t, 2, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), testbed.Patience)
		defer cancel()
		c, err := tb.Client.Dial(ctx, "tcp", to.String())
		if err == nil {
			_ = c.Close()
		}
		return err
	}).Stop
}

// TestOutgrown: no client is refused while sets are made anew since there are more Services than they had room for.
func TestOutgrown(t *testing.T) {
	t.Parallel()
	tb := testbed.NewT(t, testbed.Config{Pods: 1})
	s, e := served(t, tb, lab.At(lab.IP(false, "cluster", 1), 80)), new(Engine)
	syncOn(t, tb.Node, e, lab.Whole(s))
	end := connecting(t, tb, s.Addresses[0].Addr)
	defer end()
	more := make([]*lb.Service, 4500) // there is room for 4,096 at first
	for i := range more {
		more[i] = new(lb.Service)
		*more[i] = lab.Plain(false, i+2, 1)
	}
	for some := range slices.Chunk(more, 500) {
		begun := time.Now()
		syncOn(t, tb.Node, e, lb.Delta{Added: some})
		t.Logf("500 more are written after %v", time.Since(begun))
	}
	if !verifyOn(t, tb.Node, e) {
		t.Error("Verify finds something out of place")
	}
}

// slow is what keeps packets in the midst of our rules for as long as a transaction takes.
const slow = `
table ip sluice-services {
	chain slowest { %s }
	chain slower { %s }
	chain slow { %s }
}
insert rule ip sluice-services prerouting jump slow
`

// TestWrittenAnew: no client is refused while another process writes all of the table, and packets are
// between the beginning of the old rules and their maps.
func TestWrittenAnew(t *testing.T) {
	t.Parallel()
	tb := testbed.NewT(t, testbed.Config{Pods: 2})
	s := served(t, tb, netip.MustParseAddrPort("10.96.0.1:80"))
	s.Addresses = append(s.Addresses, lb.Address{Addr: lab.Anywhere(false, 30080), Kind: lb.NodePort})
	file := filepath.Join(t.TempDir(), "slow.nft")
	testbed.Check(t, os.WriteFile(file, fmt.Appendf(nil, slow, strings.Repeat("ip saddr 192.0.2.1 drop;", 50),
		strings.Repeat("jump slowest;", 20), strings.Repeat("jump slower;", 20)), 0o600))
	syncOn(t, tb.Node, new(Engine), lab.Whole(s))
	for _, to := range []netip.AddrPort{s.Addresses[0].Addr, netip.AddrPortFrom(tb.Node.Addr4, 30080)} {
		end := connecting(t, tb, to)
		defer end()
	}
	for range 20 {
		tb.Node.Run(t, "nft", "-f", file)
		syncOn(t, tb.Node, new(Engine), lab.Whole(s))
	}
}

// TestFewerEndpoints: no client is refused while endpoints go, which have had their turns until then.
func TestFewerEndpoints(t *testing.T) {
	t.Parallel()
	tb := testbed.NewT(t, testbed.Config{Pods: 4})
	all := served(t, tb, netip.MustParseAddrPort("10.96.0.1:80"))
	few := all
	few.Backends = all.Backends[:2]
	e := &Engine{}
	syncOn(t, tb.Node, e, lab.Whole(all))
	end := connecting(t, tb, all.Addresses[0].Addr)
	defer end()
	for range 500 {
		syncOn(t, tb.Node, e, lb.Delta{Changed: []lb.Change{{Old: &all, New: &few}}})
		syncOn(t, tb.Node, e, lb.Delta{Changed: []lb.Change{{Old: &few, New: &all}}})
	}
	end()
}

// TestLongerAffinity: the client that was remembered for less stays where it is, also when another process writes all.
func TestLongerAffinity(t *testing.T) {
	t.Parallel()
	tb := testbed.NewT(t, testbed.Config{Pods: 3})
	s := served(t, tb, netip.MustParseAddrPort("10.96.0.1:80"))
	ask := func() string { return tb.Client.Ask("tcp", "10.96.0.1:80", testbed.Patience) }
	s.AffinityTimeout = int64(time.Minute)
	e := &Engine{}
	syncOn(t, tb.Node, e, lab.Whole(s))
	first := ask()
	long := s
	long.AffinityTimeout = int64(time.Hour)
	syncOn(t, tb.Node, e, lb.Delta{Changed: []lb.Change{{Old: &s, New: &long}}})
	for range 2 {
		if got := ask(); got != first {
			t.Errorf("the client was at %s, and gets to %s", first, got)
		}
		syncOn(t, tb.Node, &Engine{}, lab.Whole(long))
	}
}

// TestSCTP: a client that begins its association anew, from the same port, reaches an endpoint of the Service.
func TestSCTP(t *testing.T) {
	t.Parallel()
	newNode(t, testbed.Config{Pods: 2}).RestartSCTP()
}
