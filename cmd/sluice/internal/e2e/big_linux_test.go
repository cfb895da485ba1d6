package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestBigService: a Service of 20,000 ports, of which the first 16,384 are served, comes, gets other endpoints and
// goes, while others change.
func TestBigService(t *testing.T) {
	t.Parallel()
	const asked, most = 20_000, 16_384
	l := lab.New(t, testbed.Config{Pods: 2})
	l.ServeWeb()
	l.Start()
	publish := func(pod *testbed.Host) {
		service, slice := testbed.ManyPorts("big", "10.96.9.1", "TCP", asked, 8080, pod.Addr4.String())
		if pod == l.Pods[0] {
			l.Write("service.yaml", service)
		}
		l.Write("slice.yaml", slice)
	}
	services := func() int { return int(l.Metric("sluice_services")) }
	others := 0
	other := func() {
		t.Helper()
		others++
		name, ip := fmt.Sprint("other", others), fmt.Sprintf("10.96.8.%d", others)
		l.Publish(name, ip+":80", "TCP", "", 8080, l.Pods[0])
		l.Eventually(name+" is served", func() bool {
			_, err := l.Client.TryAsk("tcp", ip+":80", testbed.Patience/20)
			return err == nil
		})
	}
	servedBy := func(port int, pod *testbed.Host) func() bool {
		return func() bool {
			name, err := l.Client.TryAsk("tcp", fmt.Sprintf("10.96.9.1:%d", port), testbed.Patience/20)
			return err == nil && name == pod.Name
		}
	}
	publish(l.Pods[0])
	other()
	for _, port := range []int{1, most, 9999} { // in the order of their names this one is last
		l.Eventually("the big Service is served", servedBy(port, l.Pods[0]))
	}
	l.Eventually("all is there", func() bool { return services() == most+1+others })

	publish(l.Pods[1])
	l.Eventually("the last port has another endpoint", servedBy(9999, l.Pods[1]))

	if err := os.Remove(filepath.Join(l.Dir, "service.yaml")); err != nil {
		t.Fatal(err)
	}
	l.Eventually("the big Service goes", func() bool { return services() < most })
	other()
	l.Eventually("it has gone", func() bool { return services() == 1+others })
	if _, err := l.Client.TryAsk("tcp", "10.96.9.1:9999", testbed.Patience/20); err == nil {
		t.Error("the last port is still served")
	}
	other()
}
