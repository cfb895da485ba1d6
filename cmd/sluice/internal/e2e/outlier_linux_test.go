package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestOutlierEjection: of three endpoints one drops off the net. After five failed dials none of 1,000 requests waits
// for it; it returns when it is there again; and with all of them gone none is ejected for it.
func TestOutlierEjection(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	l.ServeWeb()
	l.Start()
	ask := func(n int) (answers map[string]int, slowest time.Duration) {
		answers = make(map[string]int)
		for range n {
			start := time.Now()
			name, err := l.Client.Who(lab.WebAddr)
			if err != nil {
				t.Fatalf("after %v: %v", answers, err)
			}
			answers[name]++
			slowest = max(slowest, time.Since(start))
		}
		return answers, slowest
	}
	ask(3)
	testbed.Check(t, l.Pods[0].Blackhole(true))
	ask(15)
	const timeouts, ejected = `sluice_dials_total{protocol="TCP",result="timeout"}`, `sluice_endpoints_excluded{reason="ejected"}`
	if failed, n := l.Metric(timeouts), l.Metric(ejected); failed != 5 ||
		n != 1 {
		t.Fatalf("%v dials were not answered, and %v endpoints are ejected, want 5 and 1", failed, n)
	}
	answers, slowest := ask(1000)
	if answers["pod-1"] != 500 || answers["pod-2"] != 500 || l.Metric(timeouts) != 5 {
		t.Errorf("1,000 requests went to %v, want 500 to each of the others", answers)
	}
	t.Logf("the slowest of 1,000 took %v", slowest)

	testbed.Check(t, l.Pods[0].Blackhole(false))
	alive := time.Now()
	l.Eventually("the endpoint returns", func() bool {
		return l.Metric(`sluice_endpoints_excluded{reason="ejected"}`) == 0
	})
	if took := time.Since(alive); took > 4*time.Second {
		t.Errorf("it returned after %v", took)
	} else {
		t.Logf("it returned after %v", took)
	}
	if answers, _ := ask(30); answers["pod-0"] != 10 {
		t.Errorf("30 requests after that went to %v, want 10 each", answers)
	}

	for _, pod := range l.Pods {
		testbed.Check(t, pod.Blackhole(true))
	}
	var clients sync.WaitGroup
	for range 20 {
		clients.Go(func() {
			if name, err := l.Client.TryAsk("tcp", lab.WebAddr, 10*time.Second); err == nil {
				t.Errorf("%s answers", name)
			}
		})
	}
	clients.Wait()
	if n := l.Metric(`sluice_ejections_total{result="enforced"}`); n != 1 {
		t.Errorf("%v ejections, want the first one only", n)
	}
	for _, pod := range l.Pods {
		testbed.Check(t, pod.Blackhole(false))
	}
	ask(3)
}

// TestActiveChecks: an endpoint that fails the check of its Service gets no connections, in user space and in the
// kernel, until it passes.
func TestActiveChecks(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	l.ServeWeb()
	for _, pod := range l.Pods[1:] {
		testbed.Keep(t)(pod.WhoTCP(":9090"))
	}
	publish := func(path string) {
		l.Publish("web", lab.WebAddr, "TCP", "sluice.io/data-path: "+path+", sluice.io/readiness-probe: "+
			"'{tcpSocket: {port: 9090}, periodSeconds: 1, failureThreshold: 1}'", 8080, l.Pods...)
	}
	publish("userspace")
	l.Start()
	failing := func(n float64) {
		l.Eventually(fmt.Sprint("endpoints that fail their checks: ", n), func() bool {
			return l.Metric(`sluice_endpoints_excluded{reason="failing_probe"}`) == n
		})
	}
	ask := func() map[string]int {
		answers := make(map[string]int)
		for range 30 {
			name, err := l.Client.Who(lab.WebAddr)
			testbed.Check(t, err)
			answers[name]++
		}
		return answers
	}
	failing(1)
	if got := ask(); got["pod-0"] != 0 || got["pod-1"] != 15 || got["pod-2"] != 15 {
		t.Errorf("user space sends to %v, want pod-1 and pod-2 only", got)
	}
	publish("nftables")
	l.Eventually("the kernel forwards it", func() bool {
		return l.Metric(`sluice_service_data_path{path="nftables"}`) == 1
	})
	if got := ask(); got["pod-0"] != 0 || got["pod-1"] != 15 || got["pod-2"] != 15 {
		t.Errorf("the kernel sends to %v, want pod-1 and pod-2 only", got)
	}
	testbed.Keep(t)(l.Pods[0].WhoTCP(":9090"))
	failing(0)
	l.Eventually("the kernel sends to it again", func() bool { return ask()["pod-0"] > 0 })
	if got := ask(); got["pod-0"] != 10 {
		t.Errorf("the kernel sends to %v, want to all three", got)
	}
}
