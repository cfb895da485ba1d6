package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// looker runs the commands that look at the running program.
type looker struct {
	*lab.Lab
	socket string
}

// run returns what a command prints, which must succeed.
func (l looker) run(args ...string) string {
	l.T.Helper()
	out, err := l.Command(append(args, "--api-socket", l.socket)...).CombinedOutput()
	if err != nil {
		l.T.Fatalf("sluice %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// read reads the JSON of a command.
func read[T any](l looker, args ...string) (answer T) {
	l.T.Helper()
	if out := l.run(append(args, "-o", "json")...); json.Unmarshal([]byte(out), &answer) != nil {
		l.T.Fatalf("sluice %s prints no JSON of its kind:\n%s", strings.Join(args, " "), out)
	}
	return answer
}

// webPort returns what there is of Service web, which is one port.
func (l looker) webPort() api.Service {
	l.T.Helper()
	all := read[api.List[api.Service]](l, "services", "default/web").Items
	if len(all) != 1 {
		l.T.Fatalf("there are %d ports of Service web: %+v", len(all), all)
	}
	return all[0]
}

// TestSeeInside: every command shows what a client has done, with numbers that agree, and after a hand-over too; what
// is changed is in the events and in the log, once.
func TestSeeInside(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	run := filepath.Join(t.TempDir(), "run")
	l := looker{lab.New(t, testbed.Config{}), filepath.Join(run, "api.sock")}
	l.ServeEcho()
	l.Write("hostile.yaml", strings.Replace(testbed.ServiceManifest("hostile", "10.96.0.66:80", "TCP", ""),
		"  name: hostile\n",
		"  name: hostile\n  annotations: {sluice.io/scheduler: \"\\e[31mred\\n\\u202Efake\"}\n", 1))
	l.Start("--handover-socket", filepath.Join(run, "handover.sock"), "--hostname-override", "node-1")
	// health comes first
	l.Eventually("the API is served", func() bool { _, err := os.Stat(l.socket); return err == nil })
	if info, err := os.Stat(l.socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the socket: %v, %v", info, err)
	}
	const short, echoed = 5, 4
	for range short {
		c := l.dial()
		c.Echoes()
		_ = c.Close()
	}
	held, opened := l.Hold(), time.Now()
	held.Echoes()
	l.Eventually("the short connections are counted", func() bool { return l.webPort().Active == 1 })

	agree := func() api.Status {
		t.Helper()
		var s api.Status
		var web api.Service
		var endpoints []api.Endpoint
		l.Eventually("nothing is counted while all is read", func() bool { // bytes of open connections are counted late
			web = l.webPort()
			s = read[api.Status](l, "status")
			endpoints = read[api.List[api.Endpoint]](l, "endpoints", "web", "-n", "default").Items
			return l.webPort().Counted == web.Counted
		})
		if web.Picks != short+1 || web.BytesIn < short*echoed || web.BytesIn != web.BytesOut {
			t.Errorf("Service web has %+v", web.Counted)
		}
		if s.Counted != web.Counted || s.Open.TCP != 1 || s.Services.Ports != 2 || s.Node != "node-1" {
			t.Errorf("status %+v does not agree with Service web %+v", s, web)
		}
		if got := l.Metric(`sluice_service_picks_total{protocol="TCP",service_name="web",` +
			`service_namespace="default",service_port=""}`); got != short+1 {
			t.Errorf("the metrics have %v", got)
		}
		sum := api.Counted{}
		for _, e := range endpoints {
			sum.Picks, sum.Failures, sum.Active = sum.Picks+e.Picks, sum.Failures+e.Failures, sum.Active+e.Active
			sum.BytesIn, sum.BytesOut = sum.BytesIn+e.BytesIn, sum.BytesOut+e.BytesOut
			if e.State != api.Ready || !e.Eligible || e.Picks != 2 {
				t.Errorf("endpoint %+v", e)
			}
		}
		if sum != web.Counted {
			t.Errorf("its endpoints sum up to %+v, itself %+v", sum, web.Counted)
		}
		return s
	}
	first := agree()
	l.connection(held, 0)
	if first.HandOvers.Count != 0 || first.PID != l.Process.Pid() || first.Services.Paths["userspace"] != 2 {
		t.Errorf("status %+v", first)
	}
	l.tables()
	l.changes()

	l.HandOver("--handover-socket", filepath.Join(run, "handover.sock"), "--hostname-override", "node-1")
	held.Echoes()
	next := agree()
	l.connection(held, time.Since(opened))
	if next.HandOvers.Count != 1 || next.HandOvers.From != first.PID || next.PID == first.PID ||
		!next.Serving.Equal(first.Serving) {
		t.Errorf("after a hand-over status %+v", next)
	}
	l.Write("web2.yaml", testbed.ServiceManifest("web2", "10.96.0.67:80", "TCP", ""))
	var reasons []string
	l.Eventually("the new Service is in the events", func() bool {
		reasons = nil
		for _, e := range read[api.List[api.Event]](l, "events").Items {
			reasons = append(reasons, strings.TrimSuffix(e.Reason+" "+e.Service, " "))
		}
		return slices.Contains(reasons, "ServiceAdded web2")
	})
	count := func(reason string) (n int) {
		for _, r := range reasons {
			if r == reason {
				n++
			}
		}
		return n
	}
	if count("ServiceAdded web") != 1 || count("TookOver") != 1 || count("EndpointsChanged web") != 2 {
		t.Errorf("events after a hand-over: %q", reasons)
	}
	if log := l.Log.String(); strings.Count(log, "service added") != 1 {
		t.Errorf("the log of the successor does not have the one Service that was added:\n%s", log)
	}
}

// connection wants the one that is open to be as its client knows it, and of an age.
func (l looker) connection(c *testbed.Talker, least time.Duration) {
	l.T.Helper()
	all := read[api.List[api.Connection]](l, "connections", "default/web").Items
	if len(all) != 1 {
		l.T.Fatalf("there are %d connections: %+v", len(all), all)
	}
	got, web := all[0], l.webPort()
	if got.Client != c.Conn.LocalAddr().String() || got.Address != lab.WebAddr || got.Service == nil ||
		*got.Service != web.ID || got.State != "established" || !strings.HasSuffix(got.Endpoint, ":8080") ||
		got.Path != "userspace" || *got.BytesIn == 0 || *got.BytesIn != *got.BytesOut || *got.Age < least.Seconds()-0.01 ||
		*got.Age > time.Hour.Seconds() || got.Idle == nil || *got.Idle > *got.Age+0.01 {
		l.T.Errorf("the connection from %s is %+v, its Service %+v", c.Conn.LocalAddr(), got, web.Counted)
	}
	clients := read[api.Talkers](l, "clients").Items
	if len(clients) != 1 || clients[0].Connections != 1 || clients[0].BytesIn != *got.BytesIn ||
		clients[0].Services != 1 ||
		clients[0].Address != l.Client.Addr4.String() {
		l.T.Errorf("the clients are %+v", clients)
	}
}

// dial opens a connection to Service web.
func (l looker) dial() *testbed.Talker {
	l.T.Helper()
	c, err := l.Client.Dial(l.T.Context(), "tcp", lab.WebAddr)
	testbed.Check(l.T, err)
	return &testbed.Talker{T: l.T, Conn: c}
}

// tables looks at what is for people.
func (l looker) tables() {
	l.T.Helper()
	pod := l.Pods[0].Addr4.String() + ":8080"
	for _, x := range []struct {
		args []string
		want []string
	}{
		{[]string{"status"}, []string{"Node:", "node-1", "TCP 1, UDP flows 0", "no hand-over", "userspace 2"}},
		{[]string{"services"}, []string{"NAMESPACE   NAME ", "10.96.0.80:80", "userspace   3/3 ", "hostile", "0/0"}},
		{[]string{"services", "-o", "wide"}, []string{"WHY", "--proxy-mode"}},
		{[]string{"endpoints", "--no-headers"}, []string{pod, "ready"}},
		{[]string{"endpoints", "--unhealthy"}, []string{"nothing found"}},
		{[]string{"connections"}, []string{"TCP        " + l.Client.Addr4.String() + ":", "10.96.0.80:80",
			"default/web", ":8080", "established"}},
		{[]string{"connections", "--endpoint", "10.9.9.9"}, []string{"nothing found"}},
		{[]string{"connections", "web", "--client", l.Client.Addr4.String() + "/24", "--protocol", "tcp", "--state",
			"established", "-o", "wide"}, []string{"LOOP", "RETRANSMITS", "default/web"}},
		{[]string{"clients", "--sort", "bytes"}, []string{l.Client.Addr4.String() + "   1 ", "CONNECTIONS"}},
		{[]string{"top", "--once", "--interval", "100ms"}, []string{"PICKS/S", "default/web", "TCP 1, UDP flows 0"}},
		{[]string{"events"}, []string{"ServiceAdded", "default/web", "ports 1, endpoints 3, ready 3",
			"AnnotationIgnored"}},
		{[]string{"config", "handover-socket"}, []string{"handover.sock", "flag"}},
		{[]string{"config"}, []string{"drain-timeout", "30s", "default"}},
		{[]string{"explain", l.Client.Addr4.String(), lab.WebAddr}, []string{"belongs to default/web: cluster IP",
			"3 of 3 endpoints eligible", "1 in flight", "data path userspace: --proxy-mode", "packet filter"}},
		{[]string{"explain", "default/web"}, []string{"TCP 10.96.0.80:80 belongs to default/web"}},
		{[]string{"explain", "udp", lab.WebAddr}, []string{"belongs to no service"}},
	} {
		got := l.run(x.args...)
		for _, want := range x.want {
			if !strings.Contains(got, want) {
				l.T.Errorf("sluice %s prints\n%s\nwhich lacks %q", strings.Join(x.args, " "), got, want)
			}
		}
		if strings.ContainsAny(got, "\x1b\u202e") {
			l.T.Errorf("sluice %s prints what a terminal obeys: %q", strings.Join(x.args, " "), got)
		}
	}
	var page api.List[api.Service]
	if err := yaml.Unmarshal([]byte(l.run("services", "-o", "yaml")), &page); err != nil || len(page.Items) != 2 {
		l.T.Errorf("the YAML has %+v, %v", page, err)
	}
	l.fails("status", "--api-socket", l.Dir+"/none.sock", "no running Sluice answers at "+l.Dir+"/none.sock")
	l.fails("services", "--api-socket", l.socket, "-o", "xml", `--output "xml" is unknown`)
	l.fails("endpoints", "--api-socket", l.socket, "a/b", "-n", "c", "contradicts")
	l.fails("connections", "--api-socket", l.socket, "--client", "me", `client "me" is no address and no range`)
	l.fails("connections", "--api-socket", l.socket, "--state", "open", "give one of [dialling held")
	l.fails("clients", "--api-socket", l.socket, "--sort", "name", "give connections or bytes")
	l.fails("top", "--api-socket", l.socket, "--interval", "1ms", "too short")
	l.fails("statuss", "did you mean status?")
	if out, err := l.Command("completion", "bash").Output(); err != nil || !strings.Contains(string(out),
		"__start_sluice") {
		l.T.Errorf("there is no completion: %v", err)
	}
	if out, err := l.Command("__complete", "services", "--api-socket", l.socket, "").Output(); err != nil ||
		!strings.Contains(string(out), "default/web\n") {
		l.T.Errorf("names are not completed: %v\n%s", err, out)
	}
}

// fails wants the arguments but the last to be a command that says that, and ends with code 1.
func (l looker) fails(args ...string) {
	l.T.Helper()
	last := len(args) - 1
	out, err := l.Command(args[:last]...).CombinedOutput()
	if testbed.ExitCode(err) != 1 || !strings.Contains(string(out), args[last]) {
		l.T.Errorf("sluice %s: %v, %s, want %q", strings.Join(args[:last], " "), err, out, args[last])
	}
}

// changes has an endpoint go and come back.
func (l looker) changes() {
	l.T.Helper()
	web := testbed.ServiceManifest("web", lab.WebAddr, "TCP", "")
	slice := func(pods ...*testbed.Host) string {
		return testbed.SliceManifest("web", 1, 8080, "TCP", testbed.Addrs(pods...)...)
	}
	l.Write("web.yaml", web, slice(l.Pods[1:]...))
	l.Eventually("the endpoint is gone", func() bool {
		return strings.Contains(l.run("events", "web"),
			"change +0 -1, endpoints 2, ready 2")
	})
	l.Write("web.yaml", web, slice(l.Pods...))
	l.Eventually("the endpoint is back", func() bool {
		return strings.Contains(l.run("events", "web"),
			"change +1 -0, endpoints 3, ready 3")
	})
	log := l.Log.String()
	for _, want := range []string{`service added	{"service": "default/web", "ports": 1, "endpoints": 3, "ready": 3}`,
		`endpoints changed	{"service": "default/web", "change": "+0 -1", "endpoints": 2, "ready": 2}`} {
		if strings.Count(log, want) != 1 {
			l.T.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
}
