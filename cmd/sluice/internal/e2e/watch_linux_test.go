package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestWatch: sluice watch has every event once and in order, also of the process that takes over, and an interrupt ends
// it well.
func TestWatch(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	run := filepath.Join(t.TempDir(), "run")
	l := looker{lab.New(t, testbed.Config{}), filepath.Join(run, "api.sock")}
	l.PublishWeb()
	serving := []string{"--handover-socket", filepath.Join(run, "handover.sock")}
	l.Start(serving...)
	l.Eventually("the API is served", func() bool { _, err := os.Stat(l.socket); return err == nil })
	var out, people testbed.Buffer
	follow := func(out *testbed.Buffer, args ...string) *testbed.Process {
		cmd := l.Command(append([]string{"watch", "--api-socket", l.socket}, args...)...)
		cmd.Stdout, cmd.Stderr = out, out
		p, err := cmd.Launch()
		testbed.Check(t, err)
		return p
	}
	all, web := follow(&out, "-o", "json", "--tail", "1000"), follow(&people, "--service", "default/web")
	events := func() (events []api.Event) {
		t.Helper()
		for line := range strings.Lines(out.String()) {
			var e api.Event
			if strings.HasSuffix(line, "\n") && json.Unmarshal([]byte(line), &e) != nil {
				t.Fatalf("it prints %q", line)
			}
			events = append(events, e)
		}
		return events
	}
	has := func(reason, service string) {
		t.Helper()
		l.Eventually(reason+" "+service+" is seen", func() bool {
			for _, e := range events() {
				if e.Reason == reason && e.Service == service {
					return true
				}
			}
			return false
		})
	}
	has("ServiceAdded", "web")
	l.Write("web2.yaml", testbed.ServiceManifest("web2", "10.96.0.67:80", "TCP", ""))
	has("ServiceAdded", "web2")
	l.HandOver(serving...)
	has("TookOver", "")
	l.Write("web3.yaml", testbed.ServiceManifest("web3", "10.96.0.68:80", "TCP", ""))
	has("ServiceAdded", "web3")
	for i, e := range events() {
		if e.Number != uint64(i+1) {
			t.Errorf("event %d has number %d: %+v", i, e.Number, e)
		}
	}
	l.Eventually("Service web is there for people", func() bool {
		return strings.Contains(people.String(), "ServiceAdded        default/web           ports 1")
	})
	if text := people.String(); strings.Contains(text, "web2") || strings.Contains(text, "TookOver") {
		t.Errorf("a filter lets others through:\n%s", text)
	}
	for _, p := range []*testbed.Process{all, web} {
		if code := p.Stop(syscall.SIGINT); code != 0 {
			t.Errorf("interrupted it ends with %d", code)
		}
	}
	l.fails("watch", "--api-socket", l.Dir+"/none.sock", "no running Sluice answers")
}
