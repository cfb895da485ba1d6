package e2e

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// kernelSeen is a cluster of which the kernel forwards the Services.
type kernelSeen struct {
	looker
	log  accessLog
	mode string
	args []string
}

// open opens a connection to a Service. It sends nothing by itself, which would be a new connection to conntrack where
// its entry was deleted.
func (k *kernelSeen) open(address string) *testbed.Talker {
	k.T.Helper()
	c, err := k.Client.Dial(k.T.Context(), "tcp", address)
	testbed.Check(k.T, err)
	testbed.Check(k.T, c.(*net.TCPConn).SetKeepAlive(false))
	k.T.Cleanup(func() { _ = c.Close() })
	return &testbed.Talker{T: k.T, Conn: c}
}

// of waits for the line of what has ended, which the kernel says when it is through its table, or someone reads that.
func (k *kernelSeen) of(c net.Conn) (line accessLine) {
	k.T.Helper()
	k.Eventually("the end is logged", func() (ok bool) {
		testbed.Check(k.T, k.Node.Do(func() error {
			_, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
			return err
		}))
		line, ok = k.log.lines()[c.LocalAddr().String()]
		return ok
	})
	return line
}

// expect wants a line of what the kernel has forwarded.
func (k *kernelSeen) expect(what string, c net.Conn, end string, check func(e accessLine) bool) {
	k.T.Helper()
	if e := k.of(c); e.End != end || e.Path != k.mode || !check(e) {
		k.T.Errorf("%s is logged as %+v, want end %s", what, e, end)
	}
}

// newKernelSeen starts the program in a mode, and Services beside each other: web, which refuses, which logs errors
// only, dns, and one in user space.
func newKernelSeen(t *testing.T, mode string, args ...string) *kernelSeen {
	k := prepareKernelSeen(t, mode, args...)
	k.Start(k.args...)
	k.Eventually("the API is served", func() bool { _, err := os.Stat(k.socket); return err == nil })
	return k
}

// prepareKernelSeen does all but to start it.
func prepareKernelSeen(t *testing.T, mode string, args ...string) *kernelSeen {
	run := filepath.Join(t.TempDir(), "run")
	l := lab.New(t, testbed.Config{Pods: 2})
	l.Mode = mode
	k := &kernelSeen{looker{l, filepath.Join(run, "api.sock")}, accessLog{l, filepath.Join(t.TempDir(), "access.log")},
		mode, nil}
	k.args = append([]string{"--handover-socket", filepath.Join(run, "handover.sock"), "--default-policy", "access-log=all",
		"--access-log-file", k.log.path}, args...)
	testbed.Check(t, os.WriteFile(k.log.path, nil, 0o640))
	l.Node.Run(t, "iptables-nft", "-A", "INPUT", "-m", "conntrack", "--ctstate", "NEW", "-j", "ACCEPT") // loads it
	for _, timeout := range []string{"tcp_timeout_time_wait", "tcp_timeout_close", "udp_timeout", "udp_timeout_stream"} {
		testbed.Check(t, l.Node.Sysctl("net.netfilter.nf_conntrack_"+timeout, "1"))
	}
	testbed.Keep(t)(l.Pods[0].EchoTCP(":8080"))
	testbed.Keep(t)(l.Pods[0].WhoUDP(l.Pods[0].Addr4.String() + ":5353"))
	l.Publish("web", lab.WebAddr, "TCP", "", 8080, l.Pods[0])
	l.Publish("refuses", "10.96.0.72:80", "TCP", "", 8080, l.Pods[1])
	l.Publish("quiet", "10.96.0.74:80", "TCP", "sluice.io/access-log: errors", 8080, l.Pods[0])
	l.Publish("relayed", "10.96.0.75:80", "TCP", "sluice.io/data-path: userspace", 8080, l.Pods[0])
	l.Publish("dns", lab.DNSAddr, "UDP", "", 5353, l.Pods[0])
	return k
}

// TestKernelSeen: what the kernel forwards is listed while it is open, and logged once when it ends, with what its
// client knows of it, beside what user space forwards.
func TestKernelSeen(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"queue", "nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			k := newKernelSeen(t, mode, "--conntrack-accounting")
			k.listed()
			k.ended()
			k.counted()
		})
	}
}

// listed looks at what is open.
func (k *kernelSeen) listed() {
	k.T.Helper()
	begun := time.Now()
	web, relayed := k.open(lab.WebAddr), k.open("10.96.0.75:80")
	for _, c := range []*testbed.Talker{web, relayed} {
		c.Echoes()
	}
	all := read[api.List[api.Connection]](k.looker, "connections").Items
	byClient := make(map[string]api.Connection)
	for _, c := range all {
		byClient[c.Client] = c
	}
	got, other := byClient[web.LocalAddr().String()], byClient[relayed.LocalAddr().String()]
	if len(all) != 2 || got.Path != k.mode || got.Service == nil || got.Service.Name != "web" || got.Loop != nil ||
		got.Address != lab.WebAddr || got.Endpoint != k.Pods[0].Addr4.String()+":8080" || got.State != "established" ||
		got.PacketsIn < 2 || got.BytesIn == nil || *got.BytesIn < 4+2*40 || got.BytesOut == nil || got.Age == nil ||
		*got.Age < 0 || *got.Age > time.Since(begun).Seconds()+0.01 || got.Idle == nil {
		k.T.Errorf("of %d connections the one that the kernel forwards is %+v", len(all), got)
	}
	if other.Path != "userspace" || other.Loop == nil || *other.BytesIn != 4 {
		k.T.Errorf("the one in user space is %+v", other)
	}
	for filter, want := range map[string]int{"--client=" + k.Client.Addr4.String(): 2, "--client=192.0.2.77": 0,
		"--protocol=udp": 0, "--state=established": 2, "--endpoint=" + k.Pods[1].Addr4.String(): 0} {
		if n := len(read[api.List[api.Connection]](k.looker, "connections", filter).Items); n != want {
			k.T.Errorf("%s: %d connections, want %d", filter, n, want)
		}
	}
	clients := read[api.Talkers](k.looker, "clients").Items
	if len(clients) != 1 || clients[0].Connections != 2 || clients[0].Services != 2 ||
		clients[0].BytesIn != *got.BytesIn+*other.BytesIn {
		k.T.Errorf("the clients are %+v", clients)
	}
	if out := k.run("connections", "web", "-n", "default"); !strings.Contains(out, k.mode) {
		k.T.Errorf("the table is\n%s", out)
	}
	_ = web.Conn.Close()
	_ = relayed.Conn.Close()
	age := time.Since(begun)
	k.expect("one that ends as it should", web.Conn, "--", func(e accessLine) bool {
		return e.Protocol == "TCP" && e.Address == lab.WebAddr && e.Namespace == "default" && e.Service == "web" &&
			e.Endpoint == k.Pods[0].Addr4.String()+":8080" && e.In >= 4+4*40 && e.Out >= 4 && e.PacketsIn >= 4 &&
			e.PacketsOut >= 3 && e.Why == map[string]string{"queue": "rr"}[k.mode] && e.Duration > 0 && e.Duration < float64(age.Milliseconds()+2000)
	})
	if e := k.of(relayed.Conn); e.Path != "" || e.In != 4 || e.End != "--" {
		k.T.Errorf("the one in user space is logged as %+v", e)
	}
}

// ended looks at how others have ended.
func (k *kernelSeen) ended() {
	k.T.Helper()
	any := func(accessLine) bool { return true }
	quiet, reset := k.open("10.96.0.74:80"), k.open("10.96.0.74:80")
	for _, c := range []*testbed.Talker{quiet, reset} {
		c.Echoes()
	}
	_ = quiet.Conn.Close()
	testbed.Check(k.T, reset.Conn.(*net.TCPConn).SetLinger(0))
	_ = reset.Conn.Close()
	k.expect("one that is reset", reset.Conn, "-D", any)
	if got := k.Client.Ask("tcp", "10.96.0.72:80", testbed.Patience); got != testbed.Refused {
		k.T.Errorf("the endpoint that refuses: %s", got)
	}
	k.Eventually("one that is refused is logged", func() bool {
		return slices.ContainsFunc(slices.Collect(maps.Values(k.log.lines())), func(e accessLine) bool {
			return e.Service == "refuses" && e.End == "SC" && e.Path == k.mode && e.PacketsIn == 1
		})
	})
	udp, err := k.Client.Dial(k.T.Context(), "udp", lab.DNSAddr)
	testbed.Check(k.T, err)
	k.T.Cleanup(func() { _ = udp.Close() })
	_, err = udp.Write([]byte("question"))
	testbed.Check(k.T, err)
	k.expect("a flow", udp, "--", func(e accessLine) bool {
		return e.Protocol == "UDP" && e.Address == lab.DNSAddr && e.Service == "dns" && e.In == 8+28 && e.Out > 28 &&
			e.Why == map[string]string{"queue": "rr"}[k.mode]
	})
	long := k.open(lab.WebAddr)
	long.Echoes()
	testbed.Check(k.T, k.Node.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
	k.expect("one whose entry was deleted", long.Conn, "KD", any)
	if e, ok := k.log.lines()[quiet.LocalAddr().String()]; ok {
		k.T.Errorf("where only errors are logged is %+v", e)
	}
	if n := k.Metric(`sluice_dropped_records_total{kind="conntrack_event"}`); n != 0 {
		k.T.Errorf("%v events are lost", n)
	}
}

// counted compares what is counted with what clients have opened, and with the access log, also after a hand-over.
func (k *kernelSeen) counted() {
	k.T.Helper()
	of := func(name string) (api.Service, api.Endpoint) {
		k.T.Helper()
		services := read[api.List[api.Service]](k.looker, "services", "default/"+name).Items
		endpoints := read[api.List[api.Endpoint]](k.looker, "endpoints", "default/"+name).Items
		if len(services) != 1 || len(endpoints) != 1 {
			k.T.Fatalf("%s has %d ports and %d endpoints", name, len(services), len(endpoints))
		}
		return services[0], endpoints[0]
	}
	const before = 2 // to web, as listed and ended have opened
	kept := []*testbed.Talker{k.open(lab.WebAddr), k.open(lab.WebAddr)}
	for _, c := range kept {
		c.Echoes()
	}
	same := func(when string, open, all uint64) {
		k.T.Helper()
		k.Eventually("the counts are fresh "+when, func() bool { // none before the successor has applied the Services
			s, _ := of("web")
			return s.Kernel != nil && s.Kernel.Open == open
		})
		var in, out uint64
		for _, line := range k.log.lines() {
			if line.Service == "web" {
				in, out = in+line.In, out+line.Out
			}
		}
		for _, c := range read[api.List[api.Connection]](k.looker, "connections", "web", "-n", "default").Items {
			in, out = in+*c.BytesIn, out+*c.BytesOut
		}
		s, e := of("web")
		want := api.Counted{Picks: all, Active: open, BytesIn: in, BytesOut: out}
		for _, n := range []struct {
			api.Counted
			kernel *api.InKernel
		}{{s.Counted, s.Kernel}, {e.Counted, e.Kernel}} {
			if got, whole := n.Plus(n.kernel); got != want || !whole || (n.Picks > 0) != (k.mode == "queue") {
				k.T.Errorf("%s %+v is counted, of which user space has %+v; want %+v", when, got, n.Counted, want)
			}
		}
		for series, want := range map[string]uint64{"active": s.Kernel.Open, "connections_total": *s.Kernel.Total,
			"bytes_total in": *s.Kernel.BytesIn, "bytes_total out": *s.Kernel.BytesOut} {
			series, direction, more := strings.Cut(series, " ")
			if more {
				direction = `direction="` + direction + `",`
			}
			series = fmt.Sprintf(`sluice_service_kernel_%s{%sprotocol="TCP",service_name="web",service_namespace="default",`+
				`service_port=""}`, series, direction)
			if got := k.Metric(series); got != float64(want) {
				k.T.Errorf("%s %s is %v, want %d", when, series, got, want)
			}
		}
		if got := k.run("services", "web", "-n", "default"); !strings.Contains(got, fmt.Sprintf(" %d        %d ", open, all)) {
			k.T.Errorf("%s the table is\n%s", when, got)
		}
	}
	same("with two open", 2, before+2)
	process := k.Process
	k.Launch(k.Command(append([]string{"--manifests", k.Dir, "--proxy-mode", k.mode}, k.args...)...))
	<-process.Done()
	k.Eventually("the successor answers", func() bool { return read[api.Status](k.looker, "status").HandOvers.Count == 1 })
	same("after a hand-over", 2, before+2)
	_ = kept[0].Conn.Close()
	if e := k.of(kept[0].Conn); e.Why != map[string]string{"queue": "rr"}[k.mode] {
		k.T.Errorf("one from before a hand-over is logged as %+v", e)
	}
	same("with one open", 1, before+2)
	if s, _ := of("relayed"); s.Kernel != nil || s.Picks != 1 {
		k.T.Errorf("the one in user space has %+v, and %+v in the kernel", s.Counted, s.Kernel)
	}
	s, e := of("refuses")
	all, _ := s.Plus(s.Kernel)
	each, _ := e.Plus(e.Kernel)
	retried := k.mode == "queue" && all.Picks > 1 // the client has sent again
	if all.Active != 0 || each.Picks != all.Picks || all.Picks != 1 && !retried {
		k.T.Errorf("the one that refuses has %+v, its endpoint %+v", all, each)
	}
}

// TestKernelSeenUncounted: without accounting what is not known is left out.
func TestKernelSeenUncounted(t *testing.T) {
	t.Parallel()
	k := newKernelSeen(t, "nftables")
	web := k.open(lab.WebAddr)
	web.Echoes()
	all := read[api.List[api.Connection]](k.looker, "connections").Items
	if len(all) != 1 || all[0].Path != k.mode || all[0].State != "established" || all[0].BytesIn != nil ||
		all[0].Age != nil {
		t.Errorf("it is listed as %+v", all)
	}
	services := read[api.List[api.Service]](k.looker, "services", "default/web").Items
	if n := services[0].Kernel; n == nil || n.Open != 1 || n.Total != nil || n.BytesIn != nil {
		t.Errorf("it is counted as %+v", n)
	}
	_ = web.Conn.Close()
	k.expect("one", web.Conn, "--", func(e accessLine) bool {
		return e.In == 0 && e.PacketsIn == 0 && e.Duration == 0 && e.Service == "web"
	})
	text, err := os.ReadFile(k.log.path)
	testbed.Check(t, err)
	if line := string(text); strings.Contains(line, "bytes_") || strings.Contains(line, "duration_ms") {
		t.Errorf("what is not known is logged: %s", line)
	}
}

// TestKernelSeenFirst: the very first connection is logged that the kernel forwards. Its client tries from before the
// program starts, faster than the program looks at what it has applied.
func TestKernelSeenFirst(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	k := prepareKernelSeen(t, "nftables")
	first := make(chan net.Conn, 1)
	go func() {
		defer close(first)
		for t.Context().Err() == nil {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			c, err := k.Client.Dial(ctx, "tcp", lab.WebAddr)
			cancel()
			if err == nil {
				first <- c
				return
			}
		}
	}()
	k.Start(k.args...)
	c := &testbed.Talker{T: t, Conn: <-first}
	c.Echoes()
	_ = c.Conn.Close()
	k.expect("the first", c.Conn, "--", func(e accessLine) bool { return e.Service == "web" })
}
