package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// transparentService is a Service whose endpoints, of this node or of another, are to see clients' own addresses.
func transparentService(on bool, name, address, node string, endpoints ...string) []string {
	service := testbed.ServiceManifest(name, address, "TCP", "")
	if on {
		service = testbed.Annotated(service, "sluice.io/transparent: 'true'")
	}
	slice := testbed.SliceManifest(name, 1, 8080, "TCP", endpoints...)
	for _, e := range endpoints {
		slice = strings.Replace(slice, fmt.Sprintf("[%s]", e), fmt.Sprintf("[%q]\n  nodeName: %s", e, node), 1)
	}
	return []string{service, slice}
}

// routing returns what the node has of rules and routes besides the usual.
func routing(l *lab.Lab) string {
	out := l.Output("ip", "rule", "list") + l.Output("ip", "-6", "rule", "list")
	for _, family := range []string{"-4", "-6"} {
		out += l.Output("ip", family, "route", "show", "table", "all")
	}
	return out + l.Output("nft", "list", "tables")
}

// TestTransparent: an endpoint on this node sees the client's own address, in both families, whatever rp_filter says:
// of clients on other hosts and on this node; of the endpoint itself it sees the node's, as do endpoints of other
// nodes. 5,000 connections have no clash. All of it holds through a hand-over, for connections that are open, too.
// Rules are there as long as a Service requests them, come back if they are removed, and leave no trace.
func TestTransparent(t *testing.T) {
	l := lab.New(t, testbed.Config{Pods: 1, RemotePods: 1})
	for _, h := range []string{"all", "eth0", "cni0"} {
		testbed.Check(t, l.Node.Sysctl("net.ipv4.conf."+h+".rp_filter", "1"))
	}
	local, remote := l.Pods[0], l.RemotePods[0]
	for _, pod := range []*testbed.Host{local, remote} {
		testbed.Keep(t)(pod.Peer("tcp", ":8080"))
	}
	testbed.Keep(t)(local.EchoTCP(":9090"))
	const v4, v6, far, echo = "10.96.0.80:80", "[fd00:10:96::80]:80", "10.96.0.81:80", "10.96.0.82:80"
	write := func(on bool) {
		l.Write("v4.yaml", transparentService(on, "v4", v4, "node", local.Addr4.String())...)
		l.Write("v6.yaml", transparentService(on, "v6", v6, "node", local.Addr6.String())...)
		l.Write("far.yaml", transparentService(on, "far", far, "remote", remote.Addr4.String())...)
		documents := transparentService(on, "echo", echo, "node", local.Addr4.String())
		documents[1] = strings.Replace(documents[1], "port: 8080", "port: 9090", 1)
		l.Write("echo.yaml", documents...)
	}
	before := routing(l)
	write(true)
	socket := filepath.Join(t.TempDir(), "socket")
	args := []string{"--handover-socket", socket, "--hostname-override", "node", "--iptables-sync-period", "2s",
		"--mark-mask", "0x7fff8000"}
	l.Start(args...)
	sees := func(from *testbed.Host, address, want string) {
		t.Helper()
		got, err := from.Who(address)
		if _, source, _ := strings.Cut(got, " "); err != nil || source != want {
			t.Errorf("from %s to %s the endpoint sees %q, %v, want %s", from, address, got, err, want)
		}
	}
	all := func() {
		t.Helper()
		sees(l.Client, v4, l.Client.Addr4.String())
		sees(l.Client, v6, l.Client.Addr6.String())
		sees(remote, v4, remote.Addr4.String())
		sees(l.Node, v4, l.Node.Addr4.String())
		sees(local, v4, "10.244.1.1")
		sees(l.Client, far, l.Node.Addr4.String())
		sees(l.Client, local.Addr4.String()+":8080", l.Client.Addr4.String()) // without Sluice
	}
	all()
	const connections = 5000
	var asked atomic.Int64
	var clients sync.WaitGroup
	for range 50 {
		clients.Go(func() {
			for asked.Add(1) <= connections {
				sees(l.Client, v4, l.Client.Addr4.String())
			}
		})
	}
	clients.Wait()
	if n := l.Metric(`sluice_transparent_dials_total{source="client"}`); n < connections {
		t.Errorf("%v dials from clients' addresses, want %d", n, connections)
	}
	if n := l.Metric(`sluice_dials_total{protocol="TCP",result="timeout"}`); n != 0 {
		t.Errorf("%v dials were not answered", n)
	}

	held, err := l.Client.Dial(t.Context(), "tcp", echo)
	testbed.Check(t, err)
	talker := &testbed.Talker{T: t, Conn: held}
	talker.Echoes()
	for range 2 {
		process := l.Process
		l.Launch(l.Command(append([]string{"--manifests", l.Dir}, args...)...))
		<-process.Done()
		talker.Echoes()
		all()
	}
	l.Output("nft", "delete", "table", "ip", "sluice-transparent")
	l.Output("ip", "-6", "rule", "del", "priority", "90")
	l.Eventually("the rules are back", func() bool {
		now := routing(l)
		return strings.Contains(now, "table ip sluice-transparent") && strings.Count(now, "90:\tfrom all fwmark") == 2
	})
	all()

	write(false)
	l.Eventually("the next endpoint sees the node", func() bool {
		got, err := l.Client.Who(v4)
		return err == nil && strings.HasSuffix(got, " 10.244.1.1")
	})
	talker.Echoes() // its rules stay
	testbed.Check(t, held.Close())
	steering := func() string {
		return strings.NewReplacer("table ip sluice-steering\n", "", "table ip6 sluice-steering\n",
			"").Replace(routing(l))
	}
	l.Eventually("the rules are gone", func() bool { return steering() == before })
	write(true)
	l.Eventually("the rules are there", func() bool { return steering() != before })
	l.Process.Stop(syscall.SIGKILL)
	l.Process = nil
	if out, err := l.Command("--cleanup").CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("--cleanup: %v, %s", err, out)
	}
	if after := routing(l); after != before {
		t.Errorf("after --cleanup:\n%s\nbefore:\n%s", after, before)
	}
}
