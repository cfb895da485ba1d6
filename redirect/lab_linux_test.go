package redirect

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
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
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// patience bounds every wait for something that happens at once if it happens.
const patience = 5 * time.Second

// quiet is how long the absence of an answer is waited for. An answer that comes
// comes within a fraction of it.
const quiet = 250 * time.Millisecond

// Addresses of the lab. Service addresses are routed to the node by the client,
// and to the world by the node, so that neither has them. The client has a second
// address, that of a pod of the node.
var (
	nodeAddr   = map[bool]netip.Addr{false: netip.MustParseAddr("10.1.0.1"), true: netip.MustParseAddr("fd01::1")}
	clientAddr = map[bool]netip.Addr{false: netip.MustParseAddr("10.1.0.2"), true: netip.MustParseAddr("fd01::2")}
	podAddr    = map[bool]netip.Addr{false: netip.MustParseAddr("10.244.0.2"), true: netip.MustParseAddr("fd44::2")}
)

// podNet is where the pods of the node are.
func podNet(ipv6 bool) netip.Prefix {
	return netip.PrefixFrom(podAddr[ipv6], map[bool]int{false: 24, true: 64}[ipv6]).Masked()
}

// unspecified is the address of node ports.
var unspecified = netfilter.Unspecified

// alone is the prefix of one address.
func alone(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// vip returns a service address.
func vip(ipv6 bool, n int) netip.Addr {
	if ipv6 {
		return netip.MustParseAddr(fmt.Sprintf("fd96::%x", n))
	}
	return netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})
}

// lab is two hosts: the node, in which the test runs, and a client, which reaches
// everything through the node.
type lab struct {
	t            *testing.T
	node, client *testbed.Host
}

// newNode moves the test to a host of its own until it ends.
func newNode(t testing.TB) *testbed.Host {
	t.Helper()
	h := testbed.NewHostsT(t, "node")[0]
	h.Enter(t)
	return h
}

func newLab(t *testing.T) *lab {
	t.Helper()
	hosts := testbed.NewHostsT(t, "node", "client")
	node, client := hosts[0], hosts[1]
	for _, key := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		check(t, node.Sysctl(key, "1"))
	}
	on := func(h *testbed.Host, name string, addrs ...netip.Prefix) testbed.End {
		return testbed.End{Host: h, Name: name, Addrs: addrs}
	}
	link := func(ipv6 bool, a netip.Addr) netip.Prefix {
		return netip.PrefixFrom(a, map[bool]int{false: 24, true: 64}[ipv6])
	}
	check(t, testbed.Cable(
		on(node, "node0", link(false, nodeAddr[false]), link(true, nodeAddr[true])),
		on(client, "client0", link(false, clientAddr[false]), link(true, clientAddr[true]), alone(podAddr[false]),
			alone(podAddr[true])),
	))
	// The node's way to the rest of the world, where service addresses would go if they
	// were not steered.
	check(t, testbed.Cable(on(node, "uplink0"), on(node, "world0")))
	for ipv6, gateway := range nodeAddr {
		everywhere := netip.PrefixFrom(unspecified(ipv6), 0)
		check(t, node.Route("uplink0", everywhere, netip.Addr{}))
		check(t, node.Route("node0", alone(podAddr[ipv6]), netip.Addr{}))
		check(t, client.Route("client0", everywhere, gateway))
	}
	node.Enter(t)
	return &lab{t, node, client}
}

// onClient runs f on the client.
func (l *lab) onClient(f func() error) error { return l.client.Do(f) }

// answers expects an answer on the client or on the node; want is empty for a refusal.
func (l *lab) answers(host string, f lb.Frontend, want string) {
	l.t.Helper()
	on := map[string]*testbed.Host{"client": l.client, "node": l.node}[host]
	var got string
	err := on.Do(func() (err error) {
		if f.Protocol == lb.TCP {
			got, err = askTCP(f.Addr)
		} else {
			got, err = askUDP(0, f.Addr)
		}
		return err
	})
	if want == "" && !refused(err) || want != "" && (err != nil || got != want) {
		l.t.Errorf("%s from the %s: %q, %v; want %q", f, host, got, err, want)
	}
}

// serveTCP is a proxy's listener on port of every address of the node: it tells
// each client which address it asked for. It returns the port.
func serveTCP(t *testing.T, address string) uint16 {
	t.Helper()
	ln, err := net.Listen("tcp", address)
	check(t, err)
	done := make(chan struct{})
	t.Cleanup(func() { ln.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			raw, err := c.(*net.TCPConn).SyscallConn()
			if err != nil {
				t.Error(err)
			}
			raw.Control(func(fd uintptr) {
				dst, err := OriginalDst(int(fd))
				if err != nil {
					t.Errorf("OriginalDst: %v", err)
				}
				fmt.Fprint(c, dst)
			})
			c.Close()
		}
	}()
	return netip.MustParseAddrPort(ln.Addr().String()).Port()
}

// askTCP connects and returns what the server says.
func askTCP(addr netip.AddrPort) (string, error) {
	return askTCPFrom(netip.Addr{}, addr, patience)
}

// askTCPFrom does so from an address, if it is valid, and waits for so long.
func askTCPFrom(local netip.Addr, addr netip.AddrPort, wait time.Duration) (string, error) {
	d := net.Dialer{Timeout: wait}
	if local.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 0))
	}
	c, err := d.Dial("tcp", addr.String())
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(wait))
	var b bytes.Buffer
	_, err = b.ReadFrom(c)
	return b.String(), err
}

// serveUDP is a proxy's socket: it answers each datagram with its port and the
// datagram, from the address that was asked. It returns the port.
func serveUDP(t *testing.T, address string) uint16 {
	t.Helper()
	pc, err := freed(func() (net.PacketConn, error) { return net.ListenPacket("udp", address) })
	check(t, err)
	c := pc.(*net.UDPConn)
	raw, err := c.SyscallConn()
	check(t, err)
	raw.Control(func(fd uintptr) {
		unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_PKTINFO, 1)
		unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1)
	})
	port := netip.MustParseAddrPort(c.LocalAddr().String()).Port()
	done := make(chan struct{})
	t.Cleanup(func() { c.Close(); <-done })
	go func() {
		defer close(done)
		b, oob := make([]byte, 1500), make([]byte, 256)
		for {
			n, oobn, _, from, err := c.ReadMsgUDPAddrPort(b, oob)
			if err != nil {
				return
			}
			// The packet info of a datagram is what its answer needs (ip(7)).
			c.WriteMsgUDPAddrPort(fmt.Appendf(nil, "%d %s", port, b[:n]), oob[:oobn], from)
		}
	}()
	return port
}

// freed opens a socket at an address that may be in use: one that was closed a moment ago may
// still be held by a program that is just being started elsewhere, as between fork(2) and
// execve(2) it has every descriptor.
func freed[C any](open func() (C, error)) (C, error) {
	c, err := open()
	for end := time.Now().Add(patience); errors.Is(err, unix.EADDRINUSE) && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // a pause between two attempts
		c, err = open()
	}
	return c, err
}

// askUDP sends a datagram on a connected socket and returns the answer. A local
// port of 0 is any. Where the packet is rejected before it leaves the host, send(2)
// says EPERM, and only the next call has what the ICMP message said.
func askUDP(local uint16, addr netip.AddrPort) (string, error) {
	return askUDPFrom(netip.AddrPortFrom(unspecified(addr.Addr().Is6()), local), addr, patience)
}

// askUDPFrom does so from an address and waits for so long.
func askUDPFrom(local, addr netip.AddrPort, wait time.Duration) (string, error) {
	d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(local)}
	c, err := freed(func() (net.Conn, error) { return d.Dial("udp", addr.String()) })
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(wait))
	if _, err := c.Write([]byte("hello")); err != nil && !errors.Is(err, syscall.EPERM) {
		return "", err
	}
	b := make([]byte, 1500)
	n, err := c.Read(b)
	return string(b[:n]), err
}

func refused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// silent reports whether nothing came back at all, not even a refusal.
func silent(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// output runs a program in the test's namespace.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// feed runs a program with input.
func feed(t *testing.T, stdin, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
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
	for _, suffix := range []string{"", "-restore", "-save"} {
		path, err := exec.LookPath(command + suffix)
		check(t, err)
		testbed.WriteScript(t, filepath.Join(dir, command+suffix),
			fmt.Sprintf("echo x >> %s\nexec %s \"$@\"\n", log, path))
	}
	return filepath.Join(dir, command), func() int {
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
		v := variant{name: "nft", command: "iptables-nft", ipv6: i&1 != 0, noSets: i&4 != 0}
		if i&2 != 0 {
			v.name, v.command = "legacy", "iptables-legacy"
		}
		if v.ipv6 {
			v.name, v.command = v.name+" IPv6", "ip6"+strings.TrimPrefix(v.command, "ip")
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

// asking has the client do something without pause until stop is called, which returns the
// first error. asked counts how often it was done.
func (l *lab) asking(f func() error) (asked *atomic.Int64, stop func() error) {
	asked = new(atomic.Int64)
	ended, failed := make(chan struct{}), make(chan error, 1)
	go func() {
		failed <- l.onClient(func() error {
			for {
				select {
				case <-ended:
					return nil
				default:
				}
				if err := f(); err != nil {
					asked.Store(math.MaxInt64) // there is no more to come
					return err
				}
				asked.Add(1)
			}
		})
	}()
	return asked, func() error {
		close(ended)
		return <-failed
	}
}
