package redirect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// patience bounds every wait for something that happens at once if it happens.
const patience = 5 * time.Second

// Addresses of the lab. Service addresses are routed to the node by the client,
// and to the client by the node, so that neither has them.
var (
	nodeAddr   = map[bool]netip.Addr{false: netip.MustParseAddr("10.1.0.1"), true: netip.MustParseAddr("fd01::1")}
	clientAddr = map[bool]netip.Addr{false: netip.MustParseAddr("10.1.0.2"), true: netip.MustParseAddr("fd01::2")}
)

// vip returns a service address.
func vip(ipv6 bool, n int) netip.Addr {
	if ipv6 {
		return netip.MustParseAddr(fmt.Sprintf("fd96::%x", n))
	}
	return netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})
}

// lab is two hosts, each a network namespace: the node, in which the test runs,
// and a client, which reaches everything through the node.
type lab struct {
	t      *testing.T
	client netns.NsHandle
}

// newNode moves the test to a network namespace of its own until it ends. Child
// processes inherit it, as the goroutine keeps its thread.
func newNode(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: needs root, or a user namespace: run under unshare -rn")
	}
	runtime.LockOSThread()
	before, err := netns.Get()
	check(t, err)
	node, err := netns.New()
	check(t, err)
	t.Cleanup(func() {
		node.Close()
		defer before.Close()
		if err := netns.Set(before); err != nil {
			t.Errorf("go back to the first namespace: %v", err)
			return // the thread stays locked and ends with the test
		}
		runtime.UnlockOSThread()
	})
	up(t, "lo")
}

func newLab(t *testing.T) *lab {
	t.Helper()
	newNode(t)
	node, err := netns.Get()
	check(t, err)
	defer node.Close()
	l := &lab{t: t}
	l.client, err = netns.New()
	check(t, err)
	t.Cleanup(func() { l.client.Close() })
	up(t, "lo")
	check(t, netns.Set(node))

	attrs := netlink.NewLinkAttrs()
	attrs.Name = "node0"
	check(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "client0", PeerNamespace: netlink.NsFd(l.client)}))
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		check(t, os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0))
	}
	// The node's way to the rest of the world, where service addresses would go
	// if they were not steered.
	uplink := netlink.NewLinkAttrs()
	uplink.Name = "uplink0"
	check(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: uplink, PeerName: "world0"}))
	up(t, "world0")
	configure(t, "node0", nodeAddr)
	out := up(t, "uplink0")
	for ipv6 := range nodeAddr {
		check(t, netlink.RouteAdd(&netlink.Route{LinkIndex: out.Attrs().Index, Dst: everywhere(ipv6), Scope: netlink.SCOPE_LINK}))
	}
	check(t, l.onClient(func() error {
		configure(t, "client0", clientAddr)
		for ipv6, gateway := range nodeAddr {
			if err := netlink.RouteAdd(&netlink.Route{Dst: everywhere(ipv6), Gw: gateway.AsSlice()}); err != nil {
				return err
			}
		}
		return nil
	}))
	return l
}

func everywhere(ipv6 bool) *net.IPNet {
	if ipv6 {
		return &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
}

// configure gives an interface its addresses.
func configure(t *testing.T, name string, own map[bool]netip.Addr) {
	t.Helper()
	link := up(t, name)
	for ipv6, addr := range own {
		bits := map[bool]int{false: 24, true: 64}[ipv6]
		check(t, netlink.AddrAdd(link, &netlink.Addr{
			IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, addr.BitLen())},
			Flags: unix.IFA_F_NODAD,
		}))
	}
}

func up(t *testing.T, name string) netlink.Link {
	t.Helper()
	link, err := netlink.LinkByName(name)
	check(t, err)
	check(t, netlink.LinkSetUp(link))
	return link
}

// onClient runs f in the client's namespace, on a thread that ends with it.
func (l *lab) onClient(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := netns.Set(l.client)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// from runs f on the client or on the node.
func (l *lab) from(host string, f func() error) error {
	if host == "node" {
		return f()
	}
	return l.onClient(f)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
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
	c, err := net.DialTimeout("tcp", addr.String(), patience)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	var b bytes.Buffer
	_, err = b.ReadFrom(c)
	return b.String(), err
}

// serveUDP is a proxy's socket: it answers each datagram with its port and the
// datagram, from the address that was asked. It returns the port.
func serveUDP(t *testing.T, address string) uint16 {
	t.Helper()
	pc, err := net.ListenPacket("udp", address)
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

// askUDP sends a datagram on a connected socket and returns the answer. A local
// port of 0 is any. Where the packet is rejected before it leaves the host, send(2)
// says EPERM, and only the next call has what the ICMP message said.
func askUDP(local uint16, addr netip.AddrPort) (string, error) {
	d := net.Dialer{LocalAddr: &net.UDPAddr{Port: int(local)}, Timeout: patience}
	c, err := d.Dial("udp", addr.String())
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte("hello")); err != nil && !errors.Is(err, syscall.EPERM) {
		return "", err
	}
	b := make([]byte, 1500)
	n, err := c.Read(b)
	return string(b[:n]), err
}

func refused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

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

var (
	saveComment = regexp.MustCompile(`(?m)^#.*\n`)
	saveCounter = regexp.MustCompile(`\[\d+:\d+\]`)
)

// saved returns all that iptables and ipset of both backends and families save,
// without time stamps and counters.
func saved(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, name := range []string{"iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy"} {
		out := saveComment.ReplaceAllString(output(t, name+"-save"), "")
		fmt.Fprintf(&b, "== %s\n%s", name, saveCounter.ReplaceAllString(out, "[0:0]"))
	}
	fmt.Fprintf(&b, "== ipset\n%s", output(t, "ipset", "save"))
	return b.String()
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
		script := fmt.Sprintf("#!/bin/sh\necho x >> %s\nexec %s \"$@\"\n", log, path)
		check(t, os.WriteFile(filepath.Join(dir, command+suffix), []byte(script), 0o755))
	}
	return filepath.Join(dir, command), func() int {
		b, _ := os.ReadFile(log)
		return bytes.Count(b, []byte("\n"))
	}
}

// variant is one way to steer, and a name for it.
type variant struct {
	name    string
	command string
	ipv6    bool
	noSets  bool
}

func (v variant) steerer() *IPTables {
	return &IPTables{IPv6: v.ipv6, Command: v.command, NoIPSet: v.noSets}
}

// eachVariant runs a test in each backend, with and without sets, in both
// families.
func eachVariant(t *testing.T, f func(t *testing.T, v variant)) {
	for _, v := range []variant{
		{"nft", "iptables-nft", false, false},
		{"nft without sets", "iptables-nft", false, true},
		{"nft IPv6", "ip6tables-nft", true, false},
		{"legacy", "iptables-legacy", false, false},
		{"legacy without sets", "iptables-legacy", false, true},
		{"legacy IPv6", "ip6tables-legacy", true, false},
	} {
		t.Run(v.name, func(t *testing.T) {
			for _, name := range []string{v.command, "ipset"} {
				if _, err := exec.LookPath(name); err != nil {
					t.Skipf("SKIPPED: %v", err)
				}
			}
			f(t, v)
		})
	}
}

func syncPlan(t *testing.T, s *IPTables, p Plan) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := s.Sync(ctx, p); err != nil {
		t.Fatal(err)
	}
}
