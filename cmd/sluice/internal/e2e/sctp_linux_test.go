package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// errAborted is an ABORT in place of an INIT ACK.
var errAborted = errors.New("aborted")

// refusedSCTP sends an INIT to addr and returns what the kernel says of it, or
// errAborted: nil if nothing, within a second.
func refusedSCTP(from *testbed.Host, addr netip.AddrPort) error {
	network := "ip4:132"
	if addr.Addr().Is6() {
		network = "ip6:132"
	}
	var c *net.IPConn
	err := from.Do(func() (err error) {
		c, err = net.DialIP(network, nil, &net.IPAddr{IP: addr.Addr().AsSlice()})
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	b := []byte{0x9c, 0x40, byte(addr.Port() >> 8), byte(addr.Port()), 0, 0, 0, 0, 0, 0, 0, 0,
		1, 0, 0, 20, 0, 0, 0, 9, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1}
	sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	b[8], b[9], b[10], b[11] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
	if _, err := c.Write(b); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	answer := make([]byte, 1500)
	switch n, _, err := c.ReadFromIP(answer); { // without the header of IPv4
	case err == nil && n > 12 && answer[12] == 6: // the first chunk, after the common header (RFC 9260, section 3)
		return errAborted
	case !errors.Is(err, os.ErrDeadlineExceeded):
		return err
	}
	return nil
}

// Every kind of address of an SCTP Service is served, and refuses without endpoints.
func TestSCTP(t *testing.T) {
	testbed.Race(t)
	testbed.VM(t)
	t.Parallel()
	for _, mode := range []string{"userspace", "winuserspace"} {
		t.Run(mode, func(t *testing.T) { testSCTP(t, mode) })
	}
}

func testSCTP(t *testing.T, mode string) {
	t.Parallel()
	ends := testbed.NewSCTPEnds(t)
	l := lab.New(t, testbed.Config{Pods: 2, Clients: 2})
	if mode == "winuserspace" {
		l.WinUserspace()
	}
	server, pod := l.Pods[0], l.Pods[1]
	ends.Echo(t, server)
	with := []string{lab.SCTPService, testbed.SliceManifest("sig", 1, ends.EchoPort, "SCTP", server.Addr4.String()),
		strings.Replace(testbed.SliceManifest("sig", 6, ends.EchoPort, "SCTP", `"`+server.Addr6.String()+`"`), "addressType: IPv4", "addressType: IPv6", 1)}
	l.Write("sig.yaml", with...)
	l.Start()
	if !strings.Contains(l.Log.String(), fmt.Sprintf(`"engine": %q`, ends.Engine)) {
		t.Errorf("the log does not tell the engine:\n%s", l.Log.String())
	}
	all := []string{"10.96.0.38:3868", "[2001:db8:96::38]:3868", "198.51.100.38:3868", "203.0.113.38:3868",
		netip.AddrPortFrom(l.Node.Addr4, 30868).String(), netip.AddrPortFrom(l.Node.Alt4, 30868).String(),
		netip.AddrPortFrom(l.Node.Addr6, 30868).String()}
	from := []*testbed.Host{l.Client, pod}
	if ends.OnNode {
		from = append(from, l.Node)
	}
	established := 0.0
	for _, from := range from {
		for _, addr := range all {
			if err := ends.Ask(from, netip.MustParseAddrPort(addr), "hello from "+from.Name); err != nil {
				t.Errorf("%s: %v", from, err)
			}
			established++
		}
	}
	if got := l.Metric(`sluice_connections_total{protocol="SCTP",result="established"}`); got != established {
		t.Errorf("%v associations are counted, want %v", got, established)
	}
	l.Metric(fmt.Sprintf(`sluice_setting_info{reason="detected",setting="sctp_engine",value=%q}`, ends.Engine))
	out, err := l.Command("explain", "--manifests", l.Dir, "default/sig").CombinedOutput()
	if want := fmt.Sprintf("SCTP engine %s: %s\n", ends.Engine, ends.Why); err != nil || strings.Count(string(out), want) != 6 {
		t.Errorf("explain does not say %q of each address: %v\n%s", want, err, out)
	}

	l.Write("sig.yaml", lab.SCTPService)
	l.Eventually("the endpoints are gone", func() bool { return l.Metric("sluice_endpoints") == 0 })
	for _, from := range from {
		for _, addr := range all {
			err := refusedSCTP(from, netip.MustParseAddrPort(addr))
			if mode == "winuserspace" { // who has the address answers, with an ABORT
				if !errors.Is(err, errAborted) {
					t.Errorf("%s asks %s without endpoints: %v, want an ABORT", from, addr, err)
				}
				continue
			}
			if onNode := from == l.Node && errors.Is(err, syscall.EPERM); !onNode && !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s asks %s without endpoints: %v, want refused", from, addr, err)
			}
		}
	}

	l.Write("sig.yaml", with...)
	l.Eventually("the endpoints are back", func() bool { return l.Metric("sluice_endpoints") == 2 })
	if err := ends.Ask(l.Client, netip.MustParseAddrPort(all[0]), "again"); err != nil {
		t.Error(err)
	}
	l.Signal(syscall.SIGTERM)
	if code := l.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestSCTPEndpointDies: a client reaches the next endpoint from the same port on every path.
func TestSCTPEndpointDies(t *testing.T) {
	testbed.VM(t)
	t.Parallel()
	lab.EachMode(t, []string{"userspace", "queue", "nftables", "iptables"}, func(t *testing.T, mode string) {
		ends := testbed.NewSCTPEnds(t)
		l := lab.New(t, testbed.Config{Pods: 2})
		l.Mode = mode
		for i, pod := range l.Pods {
			ends.Echo(t, pod)
			l.Write("sig.yaml", lab.SCTPService,
				testbed.SliceManifest("sig", 1, ends.EchoPort, "SCTP", pod.Addr4.String()))
			if i == 0 {
				l.Start()
			}
			c, err := ends.OpenFrom(l.Client, 3902, netip.MustParseAddrPort("10.96.0.38:3868"))
			testbed.Check(t, err)
			if err := c.Ask("hello " + pod.Name); err != nil {
				t.Error(err)
			}
			testbed.Check(t, pod.Blackhole(true))
			c.Abandon()
		}
	})
}

// An engine that cannot be had ends the start, and says why.
func TestSCTPEngineForced(t *testing.T) {
	testbed.VM(t)
	t.Parallel()
	ends := testbed.NewSCTPEnds(t)
	other, why := "socket", "use SCTP sockets: the kernel has no SCTP"
	if ends.Engine == "socket" {
		other, why = "packet", "use raw sockets for SCTP: the kernel has SCTP itself"
	}
	l := lab.New(t, testbed.Config{})
	l.Write("sig.yaml", lab.SCTPService)
	var out bytes.Buffer
	cmd := l.Command("--manifests", l.Dir, "--sctp-engine="+other)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); testbed.ExitCode(err) == 0 || !strings.Contains(out.String(), "--sctp-engine="+other+": "+why) {
		t.Errorf("%v: %s", err, out.String())
	}
	explain := func() string {
		out, _ := l.Command("explain", "--manifests", l.Dir, "sctp", "10.96.0.38:3868").CombinedOutput()
		return string(out)
	}
	if out := explain(); !strings.Contains(out, "SCTP engine unknown, since the program does not answer") {
		t.Errorf("without a program explain says:\n%s", out)
	}
	l.Start("--sctp-engine=" + ends.Engine)
	if out := explain(); !strings.Contains(out, "SCTP engine "+ends.Engine+": requested by --sctp-engine\n") {
		t.Errorf("explain says:\n%s", out)
	}
	l.Metric(fmt.Sprintf(`sluice_setting_info{reason="requested",setting="sctp_engine",value=%q}`, ends.Engine))
}
