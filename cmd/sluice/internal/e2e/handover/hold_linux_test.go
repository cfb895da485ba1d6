package handover

import (
	"sync"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestHold: clients of a Service at zero wait, also over an upgrade, and are served when it has an endpoint; one more
// than may wait is refused, as all were before the Service requested it.
func TestHold(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	const most = 200
	l := newLine(t, testbed.Config{})
	l.ServeWeb()
	publish := func(annotations string, pods ...*testbed.Host) {
		l.Publish("web", lab.WebAddr, "TCP", annotations, 8080, pods...)
	}
	hold := "sluice.io/hold: 1m, sluice.io/hold-connections: '200'"
	publish("")
	l.start()
	if _, err := l.Client.Who(lab.WebAddr); err == nil {
		t.Error("a Service without endpoints answers")
	}
	publish(hold)
	held := func(n float64) {
		t.Helper()
		const series = `sluice_service_held{protocol="TCP",service_name="web",service_namespace="default",service_port=""}`
		l.Eventually("clients are held", func() bool { return l.Metric(series) == n })
	}
	var clients sync.WaitGroup
	names := make([]string, most)
	for i := range names {
		clients.Go(func() {
			l.Eventually("a client is held, and served", func() bool { // before the change is in force it is refused
				var err error
				names[i], err = l.Client.TryAsk("tcp", lab.WebAddr, time.Minute)
				return err == nil
			})
		})
	}
	held(most)
	const full = `sluice_waits_total{protocol="TCP",result="full",wait="hold"}`
	if _, err := l.Client.Who(lab.WebAddr); err == nil || l.Metric(full) < 1 {
		t.Errorf("one more client than may wait: %v", err)
	}
	l.mustUpgrade()
	held(most)
	began := time.Now()
	publish(hold, l.Pods[0])
	clients.Wait()
	t.Logf("%d clients are served %v after their endpoint is written", most, time.Since(began))
	for _, name := range names {
		if name != "pod-0" {
			t.Fatalf("a client that was held is answered by %q", name)
		}
	}
	held(0)
	if n := l.Metric(`sluice_waits_total{protocol="TCP",result="timeout",wait="hold"}`); n != 0 {
		t.Errorf("%v clients were refused", n)
	}
}
