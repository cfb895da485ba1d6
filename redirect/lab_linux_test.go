package redirect

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// patience bounds every wait for something that happens at once if it happens.
const patience = 5 * time.Second

// quiet is how long the absence of an answer is waited for. An answer that comes
// comes within a fraction of it.
const quiet = 250 * time.Millisecond

// Addresses of the lab's hosts.
var (
	nodeAddr   = families("192.0.2.10", "2001:db8:1::10")
	clientAddr = families("192.0.2.100", "2001:db8:1::100")
	podAddr    = families("10.244.1.10", "2001:db8:244:1::10")
)

func families(v4, v6 string) map[bool]netip.Addr {
	return map[bool]netip.Addr{false: netip.MustParseAddr(v4), true: netip.MustParseAddr(v6)}
}

// What the tests name most.
var (
	vip, podNet, alone, unspecified = testbed.VIP, testbed.PodNet, testbed.Alone, testbed.Unspecified
	output, feed                    = testbed.Run, testbed.Feed
)

// lab is a node, on which the test runs, with a pod, and a client.
type lab struct {
	*testbed.Testbed
	t *testing.T
}

// newNode moves the test to a host of its own until it ends.
func newNode(t testing.TB) {
	t.Helper()
	testbed.NewHostsT(t, "node")[0].Enter(t)
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{testbed.NewT(t, testbed.Config{Pods: 1}), t}
	l.Node.Enter(t)
	return l
}

// at returns the pod, if it has that address, or the client.
func (l *lab) at(a netip.Addr) *testbed.Host {
	if a == l.Pods[0].Addr(a.Is6()) {
		return l.Pods[0]
	}
	return l.Client
}

// ask asks from one of the two, by its address and port.
func (l *lab) ask(local netip.AddrPort, f lb.Frontend) string {
	return l.at(local.Addr()).AskFrom(local, f.Protocol.String(), f.Addr.String(), patience)
}

// answers wants an answer, or testbed.Refused, on a host.
func (l *lab) answers(on *testbed.Host, f lb.Frontend, want string) {
	l.t.Helper()
	if got := on.Ask(f.Protocol.String(), f.Addr.String(), patience); got != want {
		l.t.Errorf("%s from the %s: %q; want %q", f, on, got, want)
	}
}

// serveTCP is a proxy's listener, on the host that the test is on: it tells each client which address it asked for.
// It returns the port.
func serveTCP(t *testing.T, address string) uint16 {
	t.Helper()
	return testbed.Keep(t)(testbed.EnteredT(t).ServeTCP(address, func(c net.Conn) {
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Error(err)
			return
		}
		var dst netip.AddrPort
		raw.Control(func(fd uintptr) { dst, err = OriginalDst(int(fd)) })
		if err != nil {
			t.Errorf("OriginalDst: %v", err)
		}
		testbed.Say(c, dst.String())
	})).Addr.Port()
}

// serveUDP is a proxy's socket there: it answers each datagram with its port, which it returns.
func serveUDP(t *testing.T, address string) uint16 {
	t.Helper()
	var port atomic.Uint32
	s := testbed.Keep(t)(testbed.EnteredT(t).Answer("udp", address, func(netip.AddrPort) string {
		return fmt.Sprint(port.Load())
	}))
	port.Store(uint32(s.Addr.Port()))
	return s.Addr.Port()
}

// elementMarks are around and between the elements of a set that nft lists.
var elementMarks = regexp.MustCompile(`(elements = {|,| }\n)\s*`)

var (
	saveComment = regexp.MustCompile(`(?m)^#.*\n`)
	saveCounter = regexp.MustCompile(`\[\d+:\d+\]`)
)

// saved returns all that iptables and ipset of both backends and families save,
// without time stamps and counters.
func saved(t *testing.T) string {
	t.Helper()
	return savedBy(t, "iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy")
}

// savedBy returns what ipset and some of them save.
func savedBy(t *testing.T, commands ...string) string {
	t.Helper()
	var b strings.Builder
	for _, name := range commands {
		out := saveComment.ReplaceAllString(output(t, name+"-save"), "")
		fmt.Fprintf(&b, "== %s\n%s", name, saveCounter.ReplaceAllString(out, "[0:0]"))
	}
	fmt.Fprintf(&b, "== ipset\n%s", output(t, "ipset", "save"))
	return b.String()
}

// saved returns what the kernel holds of a steerer, in an order that may change.
func (v variant) saved(t *testing.T) string {
	t.Helper()
	if v.nftables {
		list := output(t, "nft", "--stateless", "list", "ruleset")
		return elementMarks.ReplaceAllString(list, "\n")
	}
	return savedBy(t, v.command)
}

// watched returns a copy of an iptables command that counts its own runs, and the
// function that tells the count.
func watched(t *testing.T, command string) (string, func() int) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	return testbed.WrapIPTables(t, dir, command, "echo x >> "+log), func() int {
		b, _ := os.ReadFile(log)
		return bytes.Count(b, []byte("\n"))
	}
}

// variant is one way to steer, and a name for it.
type variant struct {
	name     string
	nftables bool
	command  string // of iptables; with nftables, what others write rules by
	ipv6     bool
	noSets   bool
}

// steers is a steerer by either packet filter.
type steers interface {
	Leftover(context.Context) Leftover
	Sync(context.Context, Update) error
	Verify(context.Context) (bool, error)
	Stats() Stats
}

func (v variant) steerer() steers { return v.bound(netip.Addr{}) }

// bound returns a steerer to an address.
func (v variant) bound(bind netip.Addr) steers {
	if v.nftables {
		return &NFTables{IPv6: v.ipv6, BindAddr: bind}
	}
	s := v.iptables()
	s.BindAddr = bind
	return s
}

func (v variant) iptables() *IPTables {
	return &IPTables{IPv6: v.ipv6, Command: v.command, NoIPSet: v.noSets}
}

// entriesOf returns what a steerer keeps.
func entriesOf(s steers) *steerer {
	if n, ok := s.(*NFTables); ok {
		return &n.steerer
	}
	return &s.(*IPTables).steerer
}

// Of the eight ways, four have each two of family, backend and sets meet.
var allVariants = flag.Bool("variants", false, "run tests in all eight ways to steer by iptables instead of four")

// variants are the ways to steer by iptables: in each backend, with and without sets, in both families.
func variants() (out []variant) {
	for i := range 8 {
		if !*allVariants && bits.OnesCount(uint(i))%2 != 0 {
			continue
		}
		backend := testbed.IPTables{IPv6: i&1 != 0, Legacy: i&2 != 0}
		v := variant{command: backend.Command(), ipv6: backend.IPv6, noSets: i&4 != 0}
		_, v.name, _ = strings.Cut(v.command, "-")
		if v.ipv6 {
			v.name += " IPv6"
		}
		if v.noSets {
			v.name += " without sets"
		}
		out = append(out, v)
	}
	return out
}

var nftVariants = []variant{
	{name: "nftables", nftables: true, command: "iptables-nft"},
	{name: "nftables IPv6", nftables: true, command: "ip6tables-nft", ipv6: true},
}

// eachVariant runs a test with each packet filter.
func eachVariant(t *testing.T, f func(t *testing.T, v variant)) {
	runVariants(t, append(variants(), nftVariants...), f)
}

// eachIPTables runs a test of what only iptables has.
func eachIPTables(t *testing.T, f func(t *testing.T, v variant)) { runVariants(t, variants(), f) }

// eachSetVariant runs a test of iptables only with sets.
func eachSetVariant(t *testing.T, f func(t *testing.T, v variant)) { runVariants(t, setVariants(), f) }

func setVariants() []variant {
	return slices.DeleteFunc(variants(), func(v variant) bool { return v.noSets })
}

// eachNFTables runs a test of what only nftables has.
func eachNFTables(t *testing.T, f func(t *testing.T, v variant)) { runVariants(t, nftVariants, f) }

// runVariants runs a test in some variants, some at the same time: each has hosts of
// its own, and those with the legacy backend wait for each other's lock.
func runVariants(t *testing.T, list []variant, f func(t *testing.T, v variant)) {
	for _, v := range list {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			for _, name := range []string{v.command, "ipset"} {
				if _, err := exec.LookPath(name); err != nil {
					t.Skipf("SKIPPED: %v", err)
				}
			}
			f(t, v)
		})
	}
}

func syncPlan(t *testing.T, s steers, p Plan) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	check(t, s.Sync(ctx, p.Update()))
}

// verified expects Verify to find, or not, what was written.
func verified(t *testing.T, s steers, want bool, when string, args ...any) {
	t.Helper()
	if ok, err := s.Verify(t.Context()); ok != want || err != nil {
		t.Errorf("Verify %s = %v, %v", fmt.Sprintf(when, args...), ok, err)
	}
}
