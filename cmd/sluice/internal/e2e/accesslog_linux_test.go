package e2e

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// accessLine is a line of the access log.
type accessLine struct {
	Protocol, Client, Address, Namespace, Service, Endpoint, End, Why string

	Failed    int      `json:"failed_attempts"`
	Tried     []string `json:"failed_endpoints"`
	Wait      *float64 `json:"wait_ms"`
	Connect   *float64 `json:"connect_ms"`
	FirstByte *float64 `json:"first_byte_ms"`
	Duration  float64  `json:"duration_ms"`
	In        uint64   `json:"bytes_in"`
	Out       uint64   `json:"bytes_out"`

	Path       string `json:"data_path"` // empty: user space
	PacketsIn  uint64 `json:"packets_in"`
	PacketsOut uint64 `json:"packets_out"`
}

// accessLog is that of a lab's program.
type accessLog struct {
	l    *lab.Lab
	path string
}

// lines returns all lines so far, by client.
func (a accessLog) lines() map[string]accessLine {
	a.l.T.Helper()
	text, err := os.ReadFile(a.path)
	testbed.Check(a.l.T, err)
	all := make(map[string]accessLine)
	for line := range strings.Lines(string(text)) {
		var e accessLine
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			if !strings.HasSuffix(line, "\n") {
				break // the last one is being written
			}
			a.l.T.Fatalf("%q: %v", line, err)
		}
		if _, twice := all[e.Client]; twice {
			a.l.T.Errorf("%s is logged twice", e.Client)
		}
		all[e.Client] = e
	}
	return all
}

// of waits for the line of a client.
func (a accessLog) of(c net.Conn) (line accessLine) {
	a.l.T.Helper()
	a.l.Eventually("the end is logged", func() (ok bool) {
		line, ok = a.lines()[c.LocalAddr().String()]
		return ok
	})
	return line
}

// reasons looks why endpoints were chosen: since the client was there before, by its turn in the queue, and as the
// first that was ready.
func (a accessLog) reasons(open func(string) *testbed.Talker, ready func()) {
	l := a.l
	l.T.Helper()
	logged := func(what string, c *testbed.Talker, why string) {
		l.T.Helper()
		c.Echoes()
		_ = c.Conn.Close()
		if e := a.of(c.Conn); e.Why != why || e.End != "--" {
			l.T.Errorf("%s is logged as %+v, want why %s", what, e, why)
		}
	}
	logged("the first of a client", open("10.96.0.77:80"), "rr")
	logged("one with affinity", open("10.96.0.77:80"), "affinity")
	first := open("10.96.0.78:80")
	first.Echoes()
	second := open("10.96.0.78:80")
	l.Eventually("it waits", func() bool {
		return l.Metric(`sluice_waits_total{protocol="TCP",result="began",wait="queue"}`) == 1
	})
	logged("one with room", first, "rr")
	logged("one that has waited for room", second, "queue")
	held := open("10.96.0.79:80")
	l.Eventually("it waits", func() bool {
		return l.Metric(`sluice_waits_total{protocol="TCP",result="began",wait="hold"}`) == 1
	})
	ready()
	logged("one that has waited for an endpoint", held, "hold")
}

// TestAccessLog: each connection and flow is logged once when it ends, with what its client knows of it and how it has
// ended, also if another process had accepted it.
func TestAccessLog(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 2})
	a := accessLog{l, filepath.Join(t.TempDir(), "access.log")}
	testbed.Keep(t)(l.Pods[0].EchoTCP(":8080"))
	pod := l.Pods[0].Addr4.String()
	l.Publish("web", lab.WebAddr, "TCP", "sluice.io/idle-timeout: 30m", 8080, l.Pods[0])
	l.Publish("half", "10.96.0.71:80", "TCP", "", 8080, l.Pods...) // the second refuses
	l.Publish("refuses", "10.96.0.72:80", "TCP", "", 8080, l.Pods[1])
	l.Publish("idle", "10.96.0.73:80", "TCP", "sluice.io/idle-timeout: 400ms", 8080, l.Pods[0])
	l.Publish("quiet", "10.96.0.74:80", "TCP", "sluice.io/access-log: errors", 8080, l.Pods[0])
	l.Publish("mute", "10.96.0.75:80", "TCP", "sluice.io/access-log: 'off'", 8080, l.Pods[0])
	l.Publish("one", "10.96.0.78:80", "TCP", "sluice.io/max-endpoint-connections: '1'", 8080, l.Pods[0])
	l.Publish("none", "10.96.0.79:80", "TCP", "sluice.io/hold: 30s", 8080)
	sticky := testbed.ServiceManifest("sticky", "10.96.0.77:80", "TCP", "  sessionAffinity: ClientIP\n")
	l.Write("sticky.yaml", sticky, testbed.SliceManifest("sticky", 1, 8080, "TCP", testbed.Addrs(l.Pods[0])...))
	testbed.Keep(t)(l.Pods[0].WhoUDP(l.Pods[0].Addr4.String() + ":5353"))
	l.Publish("dns", lab.DNSAddr, "UDP", "sluice.io/udp-idle-timeout: 300ms", 5353, l.Pods[0])
	socket := filepath.Join(t.TempDir(), "socket")
	args := []string{"--handover-socket", socket, "--default-policy", "access-log=all", "--access-log-file", a.path,
		"--default-policy=outlier-ejection=false", "--metrics-histograms=1"}
	l.Start(args...)
	open := func(address string) *testbed.Talker {
		t.Helper()
		c, err := l.Client.Dial(t.Context(), "tcp", address)
		testbed.Check(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return &testbed.Talker{T: t, Conn: c}
	}
	expect := func(what string, c net.Conn, end string, check func(e accessLine) bool) {
		t.Helper()
		if e := a.of(c); e.End != end || !check(e) {
			t.Errorf("%s is logged as %+v, want end %s", what, e, end)
		}
	}

	usual := open(lab.WebAddr)
	usual.Echoes()
	_ = usual.Conn.Close()
	var bytes uint64
	expect("one that ends as it should", usual.Conn, "--", func(e accessLine) bool {
		bytes = e.In
		return e.Protocol == "TCP" && e.Address == lab.WebAddr && e.Namespace == "default" && e.Service == "web" &&
			e.Endpoint == pod+":8080" && e.In > 0 && e.In == e.Out && e.Failed == 0 && e.Connect != nil &&
			e.FirstByte != nil && e.Wait != nil && *e.Connect > 0 && e.Duration >= *e.FirstByte && *e.FirstByte > 0 && e.Why == "rr"
	})
	retried := 0
	for range 2 {
		c := open("10.96.0.71:80")
		c.Echoes()
		_ = c.Conn.Close()
		e := a.of(c.Conn)
		why := map[int]string{0: "rr", 1: "retry"}[e.Failed]
		if retried += e.Failed; e.End != "--" || e.Endpoint != pod+":8080" || e.Failed != len(e.Tried) || e.Why != why {
			t.Errorf("one of two is logged as %+v", e)
		}
	}
	if retried != 1 {
		t.Errorf("of two connections %d attempts are logged that have failed, want one", retried)
	}
	if c, err := l.Client.Dial(t.Context(), "tcp", "10.96.0.72:80"); err == nil { // else it is reset already
		_ = c.Close()
	}
	l.Eventually("one that each endpoint refuses is logged", func() bool {
		for _, e := range a.lines() {
			if e.Service == "refuses" {
				if e.End != "SC" && e.End != "CC" || e.Failed == 0 || e.Endpoint != "" || e.Connect != nil {
					t.Errorf("one that each endpoint refuses is logged as %+v", e)
				}
				return true
			}
		}
		return false
	})
	reset := open(lab.WebAddr)
	reset.Echoes()
	testbed.Check(t, reset.Conn.(*net.TCPConn).SetLinger(0))
	_ = reset.Conn.Close()
	expect("one that its client resets", reset.Conn, "CD", func(e accessLine) bool { return e.In == bytes })
	idle := open("10.96.0.73:80")
	idle.Echoes()
	expect("one that is idle", idle.Conn, "cD", func(e accessLine) bool { return e.Duration >= 400 })
	fine, bad := open("10.96.0.74:80"), open("10.96.0.74:80")
	fine.Echoes()
	_ = fine.Conn.Close()
	bad.Echoes()
	testbed.Check(t, bad.Conn.(*net.TCPConn).SetLinger(0))
	_ = bad.Conn.Close()
	expect("an error where only errors are", bad.Conn, "CD", func(accessLine) bool { return true })
	mute := open("10.96.0.75:80")
	mute.Echoes()
	testbed.Check(t, mute.Conn.(*net.TCPConn).SetLinger(0))
	_ = mute.Conn.Close()
	udp, err := l.Client.Dial(t.Context(), "udp", lab.DNSAddr)
	testbed.Check(t, err)
	t.Cleanup(func() { _ = udp.Close() })
	_, err = udp.Write([]byte("question"))
	testbed.Check(t, err)
	expect("a flow", udp, "--", func(e accessLine) bool {
		return e.Protocol == "UDP" && e.Address == lab.DNSAddr && e.Service == "dns" && e.In == 8 && e.Out > 0 && e.Why == "rr" &&
			e.FirstByte != nil && e.Duration >= 300
	})

	a.reasons(open, func() { l.Publish("none", "10.96.0.79:80", "TCP", "sluice.io/hold: 30s", 8080, l.Pods[0]) })

	long := open(lab.WebAddr)
	long.Echoes()
	opened := time.Now() // it is accepted by now
	l.HandOver(args...)
	long.Echoes()
	age := time.Since(opened)
	_ = long.Conn.Close()
	expect("one from before a hand-over", long.Conn, "--", func(e accessLine) bool {
		return e.Duration >= float64(age.Milliseconds())-10 && e.Service == "web" && e.In == 2*bytes &&
			e.Connect == nil && e.Why == "rr" &&
			e.Address == lab.WebAddr && e.Endpoint == pod+":8080"
	})
	all := a.lines()
	for what, c := range map[string]net.Conn{"one of a Service that logs errors only": fine.Conn,
		"one of a Service that logs none": mute.Conn} {
		if e, ok := all[c.LocalAddr().String()]; ok {
			t.Errorf("%s is logged: %+v", what, e)
		}
	}
	// What the metrics of Services count is what the clients know, before and after the hand-over.
	of := func(series, more, name, namespace, protocol, side string) float64 {
		return l.Metric("sluice_service_" + series + `{protocol="` + protocol + `",` + more + `service_name="` + name +
			`",service_namespace="` + namespace + `",service_port=""` + side + "}")
	}
	for name, want := range map[string]float64{"web": 1, "quiet": 1, "mute": 1} {
		got := of("resets_total", `reason="established",`, name, "default", "TCP", `,side="client"`)
		if got != want {
			t.Errorf("%v connections to %s are counted as reset by their clients, want %v", got, name, want)
		}
	}
	if n := of("resets_total", `reason="idle_timeout",`, "idle", "default", "TCP", `,side="sluice"`); n != 1 {
		t.Errorf("%v connections are counted as idle, want one", n)
	}
	const ofWeb, ofOthers = 3, 11
	for _, series := range []string{"connect_seconds_count", "connection_duration_seconds_count", "first_byte_seconds_count"} {
		web, others := of(series, "", "web", "default", "TCP", ""), of(series, "", "__other__", "", "", "")
		if web != ofWeb || others != ofOthers {
			t.Errorf("%s is %v for web and %v for others, want %d and %d", series, web, others, ofWeb, ofOthers)
		}
	}
	if n := l.Metric(`sluice_dropped_records_total{kind="access_log"}`); n != 0 {
		t.Errorf("%v lines are lost", n)
	}
	l.Signal(syscall.SIGINT)
	if l.Wait() != 0 {
		t.Error("the program does not end well")
	}
}
