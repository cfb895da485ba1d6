package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

const (
	chosen     = `sluice_queue_flows_total{result="chosen"}`
	onQueue    = `sluice_service_data_path{path="queue"}`
	stickyAddr = "10.96.0.83:80"
)

// queued writes a Service that requests data path queue, with an endpoint in each pod.
func queued(l *lab.Lab, s lab.Movable) {
	l.T.Helper()
	s.Path = "queue"
	l.Write(s.Name+".yaml", s.Manifest(),
		testbed.SliceManifest(s.Name, 1, s.Port, s.Protocol, testbed.Addrs(l.Pods...)...))
}

// TestQueue: what requests data path queue has exact turns and affinity, and its endpoints see the client's address, by
// TCP and UDP; SCTP gets there, too. Nothing is relayed. It stays so after a stop and another start, and clients with
// affinity stay where they were meanwhile.
func TestQueue(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	ends := testbed.NewSCTPEnds(t)
	l := lab.New(t, testbed.Config{Pods: 3})
	for _, pod := range l.Pods {
		testbed.Keep(t)(pod.Peer("tcp", ":8080"))
		testbed.Keep(t)(pod.Peer("udp", netip.AddrPortFrom(pod.Addr4, 5353).String()))
		ends.Echo(t, pod)
	}
	sticky := "  sessionAffinity: ClientIP\n"
	queued(l, lab.Movable{Name: "web", Addr: lab.WebAddr, Protocol: "TCP", Port: 8080, NodePort: 30080})
	queued(l, lab.Movable{Name: "dns", Addr: lab.DNSAddr, Protocol: "UDP", Port: 5353})
	queued(l, lab.Movable{Name: "sig", Addr: "10.96.0.38:3868", Protocol: "SCTP", Port: ends.EchoPort})
	queued(l, lab.Movable{Name: "sticky", Addr: stickyAddr, Protocol: "TCP", Port: 8080, More: sticky})
	args := []string{"--cluster-cidr=10.244.0.0/16"}
	l.Start(args...)
	from := l.Pods[2]
	turns := func(protocol, addr string) {
		t.Helper()
		count := make(map[string]int)
		for range 9 {
			who, source, _ := strings.Cut(from.Ask(protocol, addr, testbed.Patience), " ")
			count[who]++
			if !isOf(from, source) && who != from.Name {
				t.Errorf("%s %s: %s sees %q, want the client's address", protocol, addr, who, source)
			}
		}
		for who, times := range count {
			if times != 3 || len(count) != 3 {
				t.Errorf("%s %s: %s had %d of 9 flows, %v; want 3 each", protocol, addr, who, times, count)
			}
		}
	}
	where := func() string {
		who, _, _ := strings.Cut(l.Client.Ask("tcp", stickyAddr, testbed.Patience), " ")
		return who
	}
	stays := func(first string) {
		t.Helper()
		for range 5 {
			if who := where(); who != first {
				t.Errorf("a client with affinity is at %q, and was at %q", who, first)
			}
		}
	}
	all := func() {
		t.Helper()
		before := l.Metric(chosen)
		turns("tcp", lab.WebAddr)
		turns("udp", lab.DNSAddr)
		if err := ends.Ask(from, netip.MustParseAddrPort("10.96.0.38:3868"), "hello"); err != nil {
			t.Errorf("SCTP: %v", err)
		}
		if n := l.Metric(chosen) - before; n != 19 {
			t.Errorf("%v flows were chosen for, want 19", n)
		}
	}
	all()
	if name := l.Client.Ask("tcp", netip.AddrPortFrom(l.Node.Addr4, 30080).String(), testbed.Patience); !strings.HasPrefix(name, "pod-") {
		t.Errorf("the node port answers %q", name)
	}
	first := where()
	stays(first)
	if n, relayed := l.Metric(onQueue), l.Metric(`sluice_connections_total{protocol="TCP",result="established"}`); n != 4 || relayed != 0 {
		t.Errorf("%v Services are on data path queue, want 4; %v connections were relayed, want none", n, relayed)
	}
	out, err := l.Command("explain", "--manifests", l.Dir, "default/web").CombinedOutput()
	if want := "data path queue: annotation sluice.io/data-path"; err != nil || !strings.Contains(string(out), want) {
		t.Errorf("explain does not say %q: %v\n%s", want, err, out)
	}
	l.Signal(syscall.SIGTERM)
	if code := l.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	stays(first)
	l.Start(args...)
	stays(first)
	all()
}

// TestQueueKilled: when the program is killed under load what is open goes on, and a new connection is served at once
// by the kernel's choice; the next start chooses again. No connection fails, and only a SYN that was with the program
// is sent again.
func TestQueueKilled(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	l.Mode = "queue"
	for _, pod := range l.Pods {
		testbed.Keep(t)(pod.WhoTCP(":8080"))
		testbed.Keep(t)(pod.EchoTCP(":7000"))
	}
	for _, s := range []lab.Movable{
		{Name: "web", Addr: lab.WebAddr, Protocol: "TCP", Port: 8080},
		{Name: "echo", Addr: "10.96.0.82:7", Protocol: "TCP", Port: 7000},
	} {
		l.Write(s.Name+".yaml", s.Manifest(),
			testbed.SliceManifest(s.Name, 1, s.Port, s.Protocol, testbed.Addrs(l.Pods...)...))
	}
	l.Start()
	conn, err := l.Client.Dial(t.Context(), "tcp", "10.96.0.82:7")
	testbed.Check(t, err)
	open := &testbed.Talker{T: t, Conn: conn}
	defer open.Close()
	open.Echoes()
	load := testbed.Repeat(t, 4, func() error {
		name, err := l.Client.Who(lab.WebAddr)
		if err == nil && !strings.HasPrefix(name, "pod-") {
			err = fmt.Errorf("answered %q", name)
		}
		return err
	})
	more := func() { t.Helper(); load.More(100) }
	more()
	if l.Metric(chosen) < 100 || l.Metric("sluice_queue_answering") != 1 {
		t.Errorf("%v flows were chosen for, want those of the load", l.Metric(chosen))
	}
	l.Signal(syscall.SIGKILL)
	l.Wait()
	begin := time.Now()
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond) // before a SYN is sent again
		c, err := l.Client.Dial(ctx, "tcp", lab.WebAddr)
		cancel()
		if err != nil {
			t.Fatalf("without the program: %v", err)
		}
		_ = c.Close()
	}
	t.Logf("20 connections one after the other took %v", time.Since(begin))
	open.Echoes()
	more()
	l.Start()
	open.Echoes()
	more()
	if l.Metric(chosen) < 100 {
		t.Errorf("after the next start %v flows were chosen for, want those of the load", l.Metric(chosen))
	}
	load.Stop()
}

// TestQueueLimits: a Service that requests a limit leaves data path queue for user space, where the limit holds; one
// that names the path stays there, without the limit.
func TestQueueLimits(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1})
	l.Mode = "queue"
	testbed.Keep(t)(l.Pods[0].EchoTCP(":7000"))
	write := func(annotations string) {
		l.Publish("few", "10.96.0.84:80", "TCP", annotations, 7000, l.Pods...)
	}
	on := func(path string) {
		t.Helper()
		metric := fmt.Sprintf("sluice_service_data_path{path=%q}", path)
		l.Eventually("it is on path "+path, func() bool { return l.Metric(metric) == 1 })
	}
	served := func() bool {
		c, err := l.Client.Dial(t.Context(), "tcp", "10.96.0.84:80")
		if err != nil {
			return false
		}
		t.Cleanup(func() { _ = c.Close() })
		testbed.Check(t, c.SetDeadline(time.Now().Add(testbed.Patience)))
		_, err = c.Write([]byte("?"))
		if err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		return err == nil
	}
	write("")
	l.Start()
	on("queue")
	write("sluice.io/max-connections: '1'")
	on("userspace")
	if first, second := served(), served(); !first || second {
		t.Errorf("of two connections: %v and %v, want the first alone", first, second)
	}
	write("sluice.io/max-connections: '1', sluice.io/data-path: queue")
	on("queue")
	if first, second := served(), served(); !first || !second || l.Metric(`sluice_fallbacks{kind="policy"}`) != 1 {
		t.Errorf("of two connections: %v and %v, want both, and that the policy is lacking", first, second)
	}
}

// TestQueueUnavailable: where data path queue is not available user space serves what requests it, and says so.
func TestQueueUnavailable(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1})
	testbed.Keep(t)(l.Pods[0].WhoTCP(":8080"))
	queued(l, lab.Movable{Name: "web", Addr: lab.WebAddr, Protocol: "TCP", Port: 8080})
	withoutTrials(l)
	l.Start()
	if name, err := l.Client.Who(lab.WebAddr); err != nil || name != l.Pods[0].Name {
		t.Errorf("%q, %v", name, err)
	}
	if n := l.Metric(`sluice_fallbacks{kind="data_path"}`); n != 1 || l.Metric(`sluice_service_data_path{path="userspace"}`) != 1 {
		t.Errorf("%v fallbacks, want 1, to user space", n)
	}
	if !strings.Contains(l.Log.String(), "operation not permitted") {
		t.Errorf("the log does not say why:\n%s", l.Log.String())
	}
}

// TestForeignMarks: a start says whose rules use the same bits of marks.
func TestForeignMarks(t *testing.T) {
	t.Parallel()
	const says = "another program uses the same mark bits"
	l := lab.New(t, testbed.Config{Pods: 1})
	l.Node.Run(t, "iptables-nft", "-t", "mangle", "-A", "PREROUTING", "-j", "MARK", "--set-xmark", "0x80000/0x80000")
	l.Start()
	testbed.Eventually(t, "the log says so", func() bool { return strings.Contains(l.Log.String(), says) })
	for _, want := range []string{"mangle", "PREROUTING", "--mark-mask"} {
		if !strings.Contains(l.Log.String(), want) {
			t.Errorf("the log does not name %s:\n%s", want, l.Log.String())
		}
	}
}

// withoutTrials makes the kernel refuse every rule that the node's Sluice tries for data paths nftables and queue:
// another program owns the table of these trials.
func withoutTrials(l *lab.Lab) {
	l.T.Helper()
	owner := l.Node.Command(context.Background(), "nft", "-i")
	stdin, err := owner.StdinPipe()
	testbed.Check(l.T, err)
	testbed.Check(l.T, owner.Start())
	l.T.Cleanup(func() {
		_ = stdin.Close()
		_ = owner.Wait()
	})
	for _, family := range []string{"ip", "ip6"} {
		_, err := fmt.Fprintf(stdin, "add table %s sluice-services-trial { flags owner; }\n", family)
		testbed.Check(l.T, err)
	}
	testbed.Eventually(l.T, "another program owns the tables", func() bool {
		return strings.Count(l.Output("nft", "list", "tables"), "sluice-services-trial") == 2
	})
}
