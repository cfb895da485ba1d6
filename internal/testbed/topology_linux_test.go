package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// soon is how long a packet may take before a test fails, and brief how long a
// test watches that none comes.
const (
	soon  = 10 * time.Second
	brief = 300 * time.Millisecond
)

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// must returns v, or fails the test.
func must[V any](t *testing.T) func(V, error) V {
	return func(v V, err error) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// expectWho checks that the server at address "to" is the one of host want.
func expectWho(t *testing.T, from *Host, network string, to netip.AddrPort, want string) {
	t.Helper()
	if got := from.Ask(network, to.String(), soon); got != want {
		t.Errorf("%s asked %s %s: got %q, want %q", from, network, to, got, want)
	}
}

// serveWho starts both servers of a host on port 8080 of all addresses.
func serveWho(t *testing.T, h *Host) {
	t.Helper()
	Keep(t)(h.WhoTCP(":8080"))
	Keep(t)(h.WhoUDP(":8080"))
}

// TestNodeWithTwoPods is the example of the package's comment.
func TestNodeWithTwoPods(t *testing.T) {
	tb := NewT(t, Config{Pods: 2})
	for _, pod := range tb.Pods {
		Keep(t)(pod.WhoTCP(":8080"))
	}
	for _, ipv6 := range []bool{false, true} {
		if got := tb.Client.Ask("tcp", tb.Pods[1].At(ipv6, 8080).String(), Patience); got != "pod-1" {
			t.Errorf("%s: pod-1 answers %q", Family(ipv6), got)
		}
	}
}

// TestHere has the host of this process as its node, which loses its interfaces at the end.
func TestHere(t *testing.T) {
	for range 2 {
		t.Run("again", func(t *testing.T) {
			tb := NewT(t, Config{Pods: 1, RemotePods: 1, Here: true})
			for _, h := range []*Host{tb.Node, tb.Pods[0], tb.RemotePods[0]} {
				serveWho(t, h)
			}
			for _, ipv6 := range []bool{false, true} {
				expectWho(t, tb.Client, "tcp", tb.Node.At(ipv6, 8080), "node")
				expectWho(t, HereT(t), "tcp", tb.RemotePods[0].At(ipv6, 8080), "remote-pod-0")
				expectWho(t, tb.Pods[0], "udp", netip.AddrPortFrom(tb.Node.Alt4, 8080), "node")
			}
		})
	}
	if out := Run(t, "ip", "-oneline", "link"); strings.Count(out, "\n") != 1 {
		t.Errorf("the host keeps:\n%s", out)
	}
}

func TestStandardLab(t *testing.T) {
	NoLeaks(t)
	tb := NewT(t, Config{})
	if len(tb.Clients) != 1 || tb.Client != tb.Clients[0] || len(tb.Pods) != 3 || tb.RemoteNode != nil {
		t.Errorf("it has %d clients and %d pods, and a remote node: %v", len(tb.Clients), len(tb.Pods), tb.RemoteNode)
	}
	for i, want := range []string{
		"10.244.1.10 2001:db8:244:1::10", "10.244.1.11 2001:db8:244:1::11", "10.244.1.12 2001:db8:244:1::12",
	} {
		if got := fmt.Sprint(tb.Pods[i].Addr4, tb.Pods[i].Addr6); got != want {
			t.Errorf("pod %d has %s, want %s", i, got, want)
		}
	}
	for _, p := range tb.Pods {
		serveWho(t, p)
		for _, a := range []netip.Addr{p.Addr4, p.Addr6} {
			for _, network := range []string{"tcp", "udp"} {
				expectWho(t, tb.Client, network, netip.AddrPortFrom(a, 8080), p.Name)
				expectWho(t, tb.Node, network, netip.AddrPortFrom(a, 8080), p.Name)
			}
		}
	}
}

func TestNoClientsNoPods(t *testing.T) {
	tb := NewT(t, Config{Clients: -1, Pods: -1})
	if tb.Client != nil || len(tb.Pods) != 0 {
		t.Errorf("got client %v and %d pods", tb.Client, len(tb.Pods))
	}
}

// TestEveryPair asks every host from every other, by each of its addresses.
func TestEveryPair(t *testing.T) {
	tb := NewT(t, Config{Clients: 2, Pods: 2, RemotePods: 2})
	got := fmt.Sprint(tb.Node.Addr4, tb.Node.Alt4, tb.RemotePods[1].Addr4)
	if want := "192.0.2.10 192.0.2.11 10.244.2.11"; got != want {
		t.Errorf("the node's addresses and the second remote pod's are %s, want %s", got, want)
	}
	pods := slices.Concat(tb.Pods, tb.RemotePods)
	for _, to := range tb.hosts {
		serveWho(t, to)
		for _, from := range tb.hosts {
			if from == tb.Router && slices.Contains(pods, to) || to == tb.Router && slices.Contains(pods, from) {
				continue // the router has no route to pods
			}
			for _, a := range []netip.Addr{to.Addr4, to.Addr6, to.Alt4, to.Alt6} {
				if a.IsValid() {
					expectWho(t, from, "tcp", netip.AddrPortFrom(a, 8080), to.Name)
				}
			}
		}
	}
}

// TestUnownedAddressesReachNode gives the node one address of each range that a
// proxy serves, and asks for it from everywhere.
func TestUnownedAddressesReachNode(t *testing.T) {
	tb := NewT(t, Config{Pods: 1, RemotePods: 1})
	vips := []string{"10.96.0.80", "198.51.100.7", "203.0.113.7", "2001:db8:96::80"}
	err := tb.Node.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		for _, vip := range vips {
			a := netip.MustParseAddr(vip)
			if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, a.BitLen()))}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	serveWho(t, tb.Node)
	for _, vip := range vips {
		for _, from := range []*Host{tb.Client, tb.Node, tb.Pods[0], tb.RemoteNode, tb.RemotePods[0]} {
			expectWho(t, from, "tcp", netip.AddrPortFrom(netip.MustParseAddr(vip), 8080), "node")
		}
	}
}

// TestUntakenIsSilence asks for an address that no host has: it must be as if the
// packets were lost, not refused.
func TestUntakenIsSilence(t *testing.T) {
	tb := NewT(t, Config{Pods: 1})
	for _, from := range []*Host{tb.Client, tb.Node, tb.Pods[0]} {
		for _, to := range []string{"10.96.0.99:80", "[2001:db8:96::99]:80"} {
			if got := from.Ask("tcp", to, brief); got != Dropped {
				t.Errorf("%s asked %s: got %q, want nothing", from, to, got)
			}
		}
	}
}

// TestHairpin has a pod ask for itself through an address that the node's kernel
// becomes the pod's own.
func TestHairpin(t *testing.T) {
	if _, err := exec.LookPath("iptables"); err != nil {
		Missing(t, "iptables is not installed")
	}
	tb := NewT(t, Config{Pods: 1})
	pod := tb.Pods[0]
	for _, rule := range []string{
		"PREROUTING -d 10.96.0.80 -p tcp --dport 80 -j DNAT --to-destination 10.244.1.10:8080",
		"POSTROUTING -s 10.244.1.10 -d 10.244.1.10 -j MASQUERADE",
	} {
		args := append([]string{"-t", "nat", "-A"}, strings.Fields(rule)...)
		if out, err := tb.Node.Command(within(t, soon), "iptables", args...).CombinedOutput(); err != nil {
			t.Fatalf("iptables %s: %v: %s", rule, err, out)
		}
	}
	serveWho(t, pod)
	expectWho(t, pod, "tcp", netip.MustParseAddrPort("10.96.0.80:80"), "pod-0")
	expectWho(t, tb.Client, "tcp", netip.MustParseAddrPort("10.96.0.80:80"), "pod-0")
}

// TestOwnNamespaceUntouched checks that building a testbed shows nothing in the
// namespace of the program itself.
func TestOwnNamespaceUntouched(t *testing.T) {
	state := func() string {
		const show = "ip link; ip addr; ip route; ip -6 route; ip rule; ip neigh"
		out, err := exec.Command("sh", "-c", show).CombinedOutput()
		if err != nil {
			Missing(t, fmt.Sprintf("ip (iproute2) is needed: %v: %s", err, out))
		}
		return string(out)
	}
	before := state()
	tb := NewT(t, Config{RemotePods: 1})
	if during := state(); during != before {
		t.Errorf("before:\n%s\nwith a testbed:\n%s", before, during)
	}
	tb.Close()
}

// TestChecksumOffload checks what ethtool says of a pod's and a client's eth0.
func TestChecksumOffload(t *testing.T) {
	if _, err := exec.LookPath("ethtool"); err != nil {
		Missing(t, "ethtool is not installed")
	}
	tb := NewT(t, Config{Pods: 1})
	for _, h := range []*Host{tb.Client, tb.Node, tb.Pods[0]} {
		out := must[[]byte](t)(h.Command(within(t, soon), "ethtool", "-k", "eth0").Output())
		for _, want := range []string{"tx-checksum-sctp: off", "tcp-segmentation-offload: on"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s: no %q in:\n%s", h, want, out)
			}
		}
	}
}

func TestCloseFreesNamespaces(t *testing.T) {
	tb := NewT(t, Config{})
	held := func() (n int) {
		for _, f := range must[[]string](t)(OpenFiles(os.Getpid())) {
			if strings.HasPrefix(f, "net:[") {
				n++
			}
		}
		return n
	}
	if n := held(); n != len(tb.hosts) {
		t.Errorf("%d hosts hold %d namespaces", len(tb.hosts), n)
	}
	tb.Close()
	tb.Close()
	if n := held(); n != 0 {
		t.Errorf("%d namespaces are held after Close", n)
	}
	if err := tb.Client.Do(func() error { return nil }); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Do after Close: got %v, want os.ErrClosed", err)
	}
	if err := tb.Client.Command(t.Context(), "true").Start(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Command.Start after Close: got %v, want os.ErrClosed", err)
	}
}
