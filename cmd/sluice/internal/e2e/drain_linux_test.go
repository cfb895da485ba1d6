package e2e

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// endpointOf returns what there is of Service web's endpoint at a pod.
func (l looker) endpointOf(pod int) api.Endpoint {
	l.T.Helper()
	for _, e := range read[api.List[api.Endpoint]](l, "endpoints", "default/web").Items {
		if e.Address == l.Pods[pod].Addr4.String()+":8080" {
			return e
		}
	}
	l.T.Fatalf("there is no endpoint at pod %d", pod)
	return api.Endpoint{}
}

// TestDrain: an operator drains an endpoint: new connections go elsewhere, open ones stay, also after a hand-over,
// until a deadline; and it is undone. It needs the socket, and force for the last endpoint.
func TestDrain(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	run := filepath.Join(t.TempDir(), "run")
	l := looker{lab.New(t, testbed.Config{}), filepath.Join(run, "api.sock")}
	l.ServeEcho()
	serving := []string{"--handover-socket", filepath.Join(run, "handover.sock")}
	l.Start(serving...)
	l.Eventually("the API is served", func() bool { _, err := os.Stat(l.socket); return err == nil })
	var open []*testbed.Talker
	for range l.Pods {
		open = append(open, l.Hold())
	}
	echo := func(when string) {
		t.Helper()
		for _, c := range open {
			if c.Echoes(); t.Failed() {
				t.Fatal(when)
			}
		}
	}
	elsewhere := func(when string) {
		t.Helper()
		before := l.endpointOf(0).Picks
		for range 2 * len(l.Pods) {
			c := l.dial()
			c.Echoes()
			_ = c.Close()
		}
		if e := l.endpointOf(0); e.Picks != before || e.State != api.Drained || e.Eligible {
			t.Errorf("%s the drained endpoint is %+v, after %d picks", when, e, before)
		}
		echo(when)
	}
	echo("before")
	pods := make([]string, len(l.Pods))
	for i, pod := range l.Pods {
		pods[i] = pod.Addr4.String()
	}
	if got := l.run("drain"); !strings.Contains(got, "nothing found") {
		t.Errorf("before anything is drained: %s", got)
	}
	got := l.run("drain", pods[0]+":8080", "--service", "default/web")
	if !strings.Contains(got, "is drained by this node's Sluice: one endpoint") {
		t.Errorf("it prints %q", got)
	}
	elsewhere("drained")
	by := fmt.Sprintf("drained by uid %d, pid ", os.Geteuid())
	if reason := l.endpointOf(0).Reason; !strings.Contains(reason, by) {
		t.Errorf("the reason is %q", reason)
	}
	if got := l.run("drain"); !strings.Contains(got, pods[0]+":8080") || !strings.Contains(got, "default/web") {
		t.Errorf("the list is %s", got)
	}
	if n := l.Metric(`sluice_endpoints_excluded{reason="drained"}`); n != 1 {
		t.Errorf("the metric has %v", n)
	}
	if got := l.run("events", "web"); !strings.Contains(got, "Drained") ||
		!strings.Contains(l.Log.String(), `"reason": "Drained"`) {
		t.Errorf("it is not reported: %s", got)
	}
	l.run("drain", pods[1])
	l.fails("drain", "--api-socket", l.socket, pods[2], "no endpoint would be left for new connections to default/web: "+
		"--force drains it nevertheless")
	l.fails("drain", "--api-socket", l.socket, "nonsense", `"nonsense" is no endpoint`)
	l.fails("drain", "--api-socket", l.socket, pods[2], "--undo", "is not drained")
	l.run("drain", pods[1], "--undo")
	resp, err := (&http.Client{Transport: &http.Transport{DialContext: l.Node.Dial}}).Post(
		"http://127.0.0.1:10249/v1/drains?endpoint="+pods[2], "", nil)
	if testbed.Check(t, err); resp.StatusCode == http.StatusOK || l.endpointOf(2).State != api.Ready {
		t.Errorf("on the metrics address a drain is answered %s", resp.Status)
	}
	_ = resp.Body.Close()

	l.run("drain", pods[0]+":8080", "--service", "default/web", "--deadline", "1h")
	deadline := func() time.Time { return *read[api.List[api.Drain]](l, "drain").Items[0].Deadline }
	before := deadline()
	l.HandOver(serving...)
	if moved := deadline().Sub(before); moved.Abs() > 200*time.Millisecond { // each process has a clock of its own
		t.Errorf("a hand-over moves the deadline by %v", moved)
	}
	elsewhere("after a hand-over")

	l.run("drain", pods[0]+":8080", "--service", "default/web", "--deadline", "2s")
	echo("before the deadline")
	reset := 0
	for _, c := range open { // those at others wait until their deadline, and go on
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		_, err := c.Read(make([]byte, 1))
		switch {
		case errors.Is(err, syscall.ECONNRESET):
			reset++
		case errors.Is(err, os.ErrDeadlineExceeded):
			c.Echoes()
		default:
			t.Errorf("after the deadline: %v", err)
		}
	}
	if reset != 1 {
		t.Errorf("%d of %d connections are reset", reset, len(open))
	}
	l.run("drain", "--undo", pods[0]+":8080", "--service", "default/web")
	picks := l.endpointOf(0).Picks
	for range len(l.Pods) {
		l.dial().Echoes()
	}
	if e := l.endpointOf(0); e.Picks == picks || e.State != api.Ready {
		t.Errorf("undone the endpoint is %+v", e)
	}
}

// TestDrainInKernel: endpoints that are drained, by the node that they run on, get no connections by the kernel's
// rules; at a deadline the connections that they have end, and those of others go on.
func TestDrainInKernel(t *testing.T) {
	testbed.VM(t)
	t.Parallel()
	lab.EachMode(t, []string{"queue", "nftables", "iptables", "ipvs"}, func(t *testing.T, mode string) {
		run := filepath.Join(t.TempDir(), "run")
		l := looker{lab.New(t, testbed.Config{Pods: 3}), filepath.Join(run, "api.sock")}
		l.Mode = mode
		l.ServeWeb()
		for _, pod := range l.Pods {
			testbed.Keep(t)(pod.EchoTCP(":9090"))
		}
		l.Publish("echo", echoAddr, "TCP", "", 9090, l.Pods...)
		slice := testbed.SliceManifest("web", 1, 8080, "TCP", testbed.Addrs(l.Pods...)...)
		slice = strings.Replace(slice, "]\n", "]\n  nodeName: worker-1\n", 1)
		l.Write("web.yaml", testbed.ServiceManifest("web", lab.WebAddr, "TCP", ""), slice)
		l.Start("--handover-socket", filepath.Join(run, "handover.sock"))
		l.Eventually("the API is served", func() bool { _, err := os.Stat(l.socket); return err == nil })
		l.run("drain", "node/worker-1")
		if got := answers(l.Lab, 30); got["pod-0"] || got[""] || len(got) != 2 {
			t.Errorf("with the node drained %v answer", got)
		}
		l.run("drain", "node/worker-1", "--undo")
		l.Eventually("it is back", func() bool { return answers(l.Lab, 20)["pod-0"] })
		l.endsInKernel()
	})
}

// echoAddr is where Service echo is.
const echoAddr = "10.96.0.76:80"

// endsInKernel drains an endpoint with a deadline.
func (l looker) endsInKernel() {
	l.T.Helper()
	at := l.Pods[0].Addr4.String() + ":9090"
	listed := func() map[string]string { // endpoints by client
		of := make(map[string]string)
		for _, c := range read[api.List[api.Connection]](l, "connections", "echo", "-n", "default").Items {
			of[c.Client] = c.Endpoint
		}
		return of
	}
	const each = 2
	var all []*testbed.Talker
	drained := 0
	for drained < each && len(all) < 100 { // path iptables chooses at random
		for range each * len(l.Pods) {
			c, err := l.Client.Dial(l.T.Context(), "tcp", echoAddr)
			testbed.Check(l.T, err)
			defer c.Close()
			all = append(all, &testbed.Talker{T: l.T, Conn: c})
			all[len(all)-1].Echoes()
		}
		drained = 0
		of := listed()
		for _, c := range all {
			if of[c.LocalAddr().String()] == at {
				drained++
			}
		}
	}
	of := listed()
	l.run("drain", at, "--deadline", "1s")
	l.Eventually("conntrack has nothing of the drained endpoint", func() bool {
		return !slices.Contains(slices.Collect(maps.Values(listed())), at)
	})
	ended := 0
	for _, c := range all {
		if of[c.LocalAddr().String()] != at {
			c.Echoes()
			continue
		}
		ended++
		_ = c.SetDeadline(time.Now().Add(testbed.Patience))
		_, err := c.Write([]byte("ping"))
		if err == nil {
			_, err = c.Read(make([]byte, 4))
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			l.T.Errorf("a connection to the drained endpoint goes on, or its client is not reset: %v", err)
		}
	}
	if ended != drained || ended < each {
		l.T.Errorf("%d of %d connections to the drained endpoint have ended, of %d in all, want %d or more", ended,
			drained, len(all), each)
	}
}
