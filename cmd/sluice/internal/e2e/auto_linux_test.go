package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/internal/testbed"
)

const (
	peerAddr = "10.96.0.85:80"
	sigAddr  = "10.96.0.38:3868"
)

// automatic is a lab whose Services are on data path auto.
type automatic struct {
	*moving
	looker
	ends  testbed.SCTPEnds
	flags []string
	moves float64 // so far, of this process
}

func newAutomatic(t *testing.T, stabilization time.Duration) *automatic {
	run := filepath.Join(t.TempDir(), "run")
	l := lab.New(t, testbed.Config{})
	a := &automatic{moving: &moving{Lab: l, stop: make(chan struct{})},
		looker: looker{l, filepath.Join(run, "api.sock")}, ends: testbed.NewSCTPEnds(t)}
	a.flags = []string{"--handover-socket", filepath.Join(run, "handover.sock"), "--hostname-override", "node",
		"--cluster-cidr", "10.244.0.0/16", "--iptables-min-sync-period", "0s", "--udp-timeout", "250ms",
		"--auto-stabilization", stabilization.String()}
	a.services = []*lab.Movable{
		{Name: "web", Addr: lab.WebAddr, Protocol: "TCP", Port: 8080},
		{Name: "both", Addr: "10.96.0.81:80", Protocol: "TCP", Port: 8080, NodePort: 30081},
		{Name: "stream", Addr: "10.96.0.82:7", Protocol: "TCP", Port: 7000, NodePort: 30082,
			More: "  sessionAffinity: ClientIP\n"},
		{Name: "dns", Addr: lab.DNSAddr, Protocol: "UDP", Port: 5353},
		{Name: "udp", Addr: "10.96.0.11:53", Protocol: "UDP", Port: 5353, NodePort: 30011},
		{Name: "peer", Addr: peerAddr, Protocol: "TCP", Port: 8081},
		{Name: "sig", Addr: sigAddr, Protocol: "SCTP", Port: a.ends.EchoPort},
	}
	for _, pod := range l.Pods {
		testbed.Keep(t)(pod.WhoTCP(":8080"))
		testbed.Keep(t)(pod.EchoTCP(":7000"))
		testbed.Keep(t)(pod.Peer("tcp", ":8081"))
		testbed.Keep(t)(pod.EchoUDP(pod.Addr4.String() + ":5353"))
		a.ends.Echo(t, pod)
	}
	a.ask("", "", "")
	l.Write("node.yaml", nodeManifest)
	l.Mode = "auto"
	l.Start(a.flags...)
	l.Eventually("the API is served", func() bool { _, err := os.Stat(a.socket); return err == nil })
	return a
}

// ask has all Services request something, each what is of use to its protocol.
func (a *automatic) ask(path, streams, datagrams string) {
	a.moving.T.Helper()
	for _, s := range a.services {
		if s.Path, s.Asks = path, streams; s.Protocol == "UDP" {
			s.Asks = datagrams
		}
		a.put(s)
	}
}

// on waits until all Services are on a path for a reason, which CLI, explain, API, page and metrics have, and looks
// whom endpoints see. moves is how many times each Service has moved since the last call.
func (a *automatic) on(path, reason, why string, moves int) {
	t, all := a.moving.T, float64(len(a.services))
	t.Helper()
	a.moves += float64(moves) * all
	want := func(series string, n float64) {
		t.Helper()
		a.moving.Eventually(fmt.Sprintf("%s is %v", series, n), func() bool { return a.moving.Metric(series) == n })
	}
	want(fmt.Sprintf("sluice_service_data_path{path=%q}", path), all)
	want("sluice_data_path_moves_total", a.moves)
	var list []api.Service
	a.moving.Eventually("all are there by "+reason, func() bool {
		list = read[api.List[api.Service]](a.looker, "services").Items
		return !slices.ContainsFunc(list, func(s api.Service) bool { return s.Path.Reason != reason })
	})
	for _, s := range list {
		if p := s.Path; p.Effective != path || !strings.Contains(p.Why, why) || p.Fallback != "" {
			t.Errorf("the API has %s at %+v, want %s by %s: %s", s.Name, p, path, reason, why)
		}
	}
	_, html := a.moving.Get("http://127.0.0.1:10249/service?namespace=default&name=web")
	for what, out := range map[string]string{"sluice services": a.run("services", "default/web", "-o", "wide"),
		"sluice explain": a.run("explain", "default/web"), "the page": html} {
		if !strings.Contains(out, path) || !strings.Contains(out, why) {
			t.Errorf("%s does not say %s: %s\n%s", what, path, why, out)
		}
	}
	if len(list) != len(a.services) {
		t.Errorf("there are %d Services, want %d", len(list), len(a.services))
	}
	a.seen(path)
}

// seen looks whom endpoints see: the client by the kernel's paths, and the node from user space.
func (a *automatic) seen(path string) {
	t, from := a.moving.T, a.moving.Pods[2]
	t.Helper()
	for range 3 {
		who, source, _ := strings.Cut(from.Ask("tcp", peerAddr, testbed.Patience), " ")
		client := isOf(from, source) || who == from.Name // a pod that asks itself is masqueraded
		if path != "userspace" && !client || path == "userspace" && isOf(from, source) {
			t.Errorf("on path %s %s sees %q", path, who, source)
		}
	}
	if err := a.ends.Ask(from, netip.MustParseAddrPort(sigAddr), "hello"); err != nil {
		t.Errorf("SCTP on path %s: %v", path, err)
	}
}

// What is requested, and what is said of it.
const (
	requestsLC      = "sluice.io/scheduler: lc"
	requestsIdle    = "sluice.io/idle-timeout: 1h"
	requestsUDPIdle = "sluice.io/udp-idle-timeout: 250ms"

	saysNone = "auto: it has all that is requested, and none costs less"
	saysLC   = "auto: the cheapest that has scheduler (annotation sluice.io/scheduler)"
	saysIdle = "idle-timeout (annotation sluice.io/"
	saysName = "annotation sluice.io/data-path"
)

// TestAuto: Services on data path auto move with what they request, under load of TCP and UDP, without losing a
// connection or a datagram, also from and to a path by its name. At each step everything that shows a path says which
// one and why. A hand-over and a start decide the same, and nothing moves.
func TestAuto(t *testing.T) {
	testbed.Race(t)
	a := newAutomatic(t, time.Second)
	a.begin()
	end := sync.OnceFunc(func() { close(a.stop); a.load.Wait() })
	defer end()
	a.on("nftables", "cost", saysNone, 0)
	a.ask("", requestsLC, requestsLC)
	a.on("queue", "policy", saysLC, 1)
	a.ask("", requestsIdle, requestsUDPIdle)
	a.on("userspace", "policy", saysIdle, 1)
	a.ask("", requestsLC, requestsLC)
	a.on("queue", "policy", saysLC, 1)
	a.ask("", "", "")
	a.on("nftables", "cost", saysNone, 1)
	a.ask("userspace", "", "")
	a.on("userspace", "annotation", saysName, 1)
	a.ask("auto", "", "")
	a.on("nftables", "cost", saysNone, 1)
	a.ask("iptables", "", "")
	a.on("iptables", "annotation", saysName, 1)
	a.ask("auto", requestsLC, requestsLC)
	a.on("queue", "policy", saysLC, 1)
	end()
	t.Logf("%d connections, %d exchanges (%d datagrams sent again, longest wait %v), %d blocks in streams; the longest "+
		"wait for a CPU was %v", a.connections.Load(), a.exchanges.Load(), a.retries.Load(),
		time.Duration(a.worst.Load()), a.blocks.Load(), a.stall.longest())
	if a.connections.Load() == 0 || a.exchanges.Load() == 0 || a.blocks.Load() == 0 {
		t.Error("there was no load")
	}

	a.moving.HandOver(append([]string{"--proxy-mode", "auto"}, a.flags...)...)
	a.moves = 0
	a.on("queue", "policy", saysLC, 0)
	a.moving.Signal(syscall.SIGTERM)
	if code := a.moving.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	a.moving.Start(a.flags...)
	a.on("queue", "policy", saysLC, 0)
}

// TestAutoFlaps: Services that request something and do not, by turns and sooner than they settle, move once, and each
// time that they would move to a cheaper path is counted; a path by its name is taken at once, and left at once.
func TestAutoFlaps(t *testing.T) {
	t.Parallel()
	a := newAutomatic(t, time.Hour)
	a.on("nftables", "cost", saysNone, 0)
	a.ask("", requestsLC, requestsLC)
	a.on("queue", "policy", saysLC, 1)
	for n := range 3 {
		a.ask("", "", "")
		a.on("queue", "stabilization", "for 1h0m0s (--auto-stabilization); then data path nftables", 0)
		if put := a.moving.Metric(`sluice_deferred_total{work="data_path_move"}`); put != float64((n+1)*len(a.services)) {
			t.Errorf("turn %d: %v moves were put off", n, put)
		}
		a.ask("", requestsLC, requestsLC)
		a.on("queue", "policy", saysLC, 0)
	}
	a.ask("nftables", "", "")
	a.on("nftables", "annotation", saysName, 1)
	a.ask("userspace", "", "")
	a.on("userspace", "annotation", saysName, 1)
	a.ask("auto", "", "")
	a.on("nftables", "cost", saysNone, 1)
}

// TestAutoHost: where this host has no queue auto does without, and says so; nothing is reported as a fallback, since
// user space has all that is requested.
func TestAutoHost(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1})
	testbed.Keep(t)(l.Pods[0].WhoTCP(":8080"))
	s := lab.Movable{Name: "web", Addr: lab.WebAddr, Protocol: "TCP", Port: 8080, Asks: "sluice.io/scheduler: lc"}
	l.Write("web.yaml", s.Manifest(), testbed.SliceManifest("web", 1, 8080, "TCP", testbed.Addrs(l.Pods...)...))
	l.Mode = "auto"
	withoutTrials(l)
	l.Start()
	if name, err := l.Client.Who(lab.WebAddr); err != nil || name != l.Pods[0].Name {
		t.Errorf("%q, %v", name, err)
	}
	for series, n := range map[string]float64{`sluice_fallbacks{kind="data_path"}`: 0, `sluice_fallbacks{kind="policy"}`: 0,
		`sluice_service_data_path{path="userspace"}`: 1} {
		if got := l.Metric(series); got != n {
			t.Errorf("%s is %v, want %v", series, got, n)
		}
	}
	if !strings.Contains(l.Log.String(), "data path auto has to do without a path") {
		t.Errorf("the log does not say so:\n%s", l.Log.String())
	}
}
