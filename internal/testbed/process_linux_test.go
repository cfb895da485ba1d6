package testbed

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The program echo-arguments prints its arguments and exits with their number.
func init() {
	programs["echo-arguments"] = func(args []string) int {
		fmt.Println(args)
		return len(args)
	}
}

func TestSelf(t *testing.T) {
	node := NewHostsT(t, "node")[0]
	p := must[*Process](t)(node.Self(t.Context(), "echo-arguments", "a", "b").Launch())
	if err := p.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "[a b]") {
		t.Errorf("the error of an exit with status 2 is %v", err)
	}
	if code := p.Stop(syscall.SIGKILL); code != 2 {
		t.Errorf("the exit code is %d, want 2", code)
	}
}

func TestProcess(t *testing.T) {
	node := NewHostsT(t, "node")[0]
	p := must[*Process](t)(node.Command(t.Context(), "sh", "-c",
		"trap 'echo bye; exit 3' TERM; echo hello; while :; do sleep 0.01; done").Launch())
	Eventually(t, "the process writes", func() bool { return p.Log.String() == "hello\n" })
	if p.Ended() || p.Pid() == os.Getpid() {
		t.Error("the process has ended, or is this one")
	}
	if code := p.Stop(syscall.SIGTERM); code != 3 || p.Log.String() != "hello\nbye\n" {
		t.Errorf("exit code %d, log %q", code, p.Log.String())
	}
	if p.Stop(syscall.SIGTERM) != 3 || !p.Ended() {
		t.Error("to stop the process again is not the same")
	}
	if err := p.Healthy(t.Context(), "http://127.0.0.1:1/"); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("a process that has ended: %v", err)
	}
}

func TestBufferLimit(t *testing.T) {
	b := Buffer{Limit: 4}
	for _, s := range []string{"ab", "cdefgh", "i"} {
		fmt.Fprint(&b, s)
	}
	if b.String() != "fghi" {
		t.Errorf("kept %q", b.String())
	}
}

func TestCable(t *testing.T) {
	hosts := NewHostsT(t, "left", "right")
	left, right := hosts[0], hosts[1]
	prefix := netip.MustParsePrefix
	if err := Cable(End{left, "l0", []netip.Prefix{prefix("10.9.0.1/24"), prefix("fd09::1/64"), prefix("fe80::1/64")}},
		End{right, "r0", []netip.Prefix{prefix("10.9.0.2/24"), prefix("fd09::2/64"), prefix("10.77.0.1/32")}}); err != nil {
		t.Fatal(err)
	}
	if err := left.Route("l0", prefix("10.77.0.0/16"), netip.MustParseAddr("10.9.0.2")); err != nil {
		t.Fatal(err)
	}
	Keep(t)(right.WhoTCP(":80"))
	for _, address := range []string{"10.9.0.2:80", "[fd09::2]:80", "10.77.0.1:80"} {
		if got := left.Ask("tcp", address, Patience); got != "right" {
			t.Errorf("%s answers %q", address, got)
		}
	}
	Keep(t)(right.Answer("udp", ":53", func(client netip.AddrPort) string { return client.String() }))
	from := netip.MustParseAddrPort("10.9.0.1:5353")
	for address, want := range map[string]string{
		"10.9.0.2:53": "10.9.0.1:5353", "10.77.0.1:53": "10.9.0.1:5353", "10.9.0.2:54": Refused,
	} {
		if got := left.AskFrom(from, "UDP", address, Patience); got != want {
			t.Errorf("%s answers %q, want %q", address, got, want)
		}
	}
	from = netip.AddrPortFrom(netip.Addr{}, 5354)
	if got := left.AskFrom(from, "udp", "10.9.0.2:53", Patience); got != "10.9.0.1:5354" {
		t.Errorf("from a port of any address the answer is %q", got)
	}
	right.Run(t, "ip", "link", "set", "r0", "down")
	if got := left.Ask("udp", "10.9.0.2:53", 100*time.Millisecond); got != Dropped {
		t.Errorf("a link that is down answers %q", got)
	}
}

func TestEnter(t *testing.T) {
	outside := here(t)
	t.Run("inside", func(t *testing.T) {
		node := NewHostsT(t, "node")[0]
		node.Enter(t)
		var inside string
		node.DoT(t, func() error { inside = here(t); return nil })
		if got := here(t); got == outside || got != inside {
			t.Errorf("the test is in %s, the host in %s, and before it was %s", got, inside, outside)
		}
	})
	// This goroutine never left.
	if got := here(t); got != outside {
		t.Errorf("the caller is in %s, and was in %s", got, outside)
	}
}

func TestManifests(t *testing.T) {
	dir := t.TempDir()
	err := WriteManifest(dir, "web.yaml", ServiceManifest("web", "[fd00::1]:80", "TCP", "  type: NodePort\n"), SliceManifest("web", 1, 8080, "TCP", "fd00::2"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(dir + "/web.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"clusterIP: fd00::1\n", "- port: 80\n", "  type: NodePort\n---\n", "addressType: IPv6", "- addresses: [fd00::2]"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %q in:\n%s", want, b)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the folder has %v, %v", entries, err)
	}
}
