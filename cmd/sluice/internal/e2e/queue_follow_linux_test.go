package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestQueueFollows: on data path queue least connections counts what the kernel forwards, also what was open before a
// hand-over, and an endpoint that refuses is ejected.
func TestQueueFollows(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	run := filepath.Join(t.TempDir(), "run")
	l := looker{lab.New(t, testbed.Config{Pods: 3}), filepath.Join(run, "api.sock")}
	for _, pod := range l.Pods[:2] {
		testbed.Keep(t)(pod.EchoTCP(":8080"))
	}
	l.Mode = "queue"
	web := func(pods ...*testbed.Host) {
		l.Publish("web", lab.WebAddr, "TCP", "", 8080, pods...)
	}
	web(l.Pods[:2]...)
	flags := []string{"--handover-socket", filepath.Join(run, "handover.sock"), "--default-policy", "scheduler=lc",
		"--conntrack-accounting"}
	l.Start(flags...)
	l.Eventually("the API is served", func() bool { _, err := os.Stat(l.socket); return err == nil })
	open := func() (at map[string]uint64) {
		at = make(map[string]uint64)
		for _, e := range read[api.List[api.Endpoint]](l, "endpoints", "web", "-n", "default").Items {
			at[e.Address] = e.Active
		}
		return at
	}
	first, other := l.Pods[0].Addr4.String()+":8080", l.Pods[1].Addr4.String()+":8080"
	evenly := func(what string, n uint64) {
		t.Helper()
		l.Eventually(what, func() bool { at := open(); return at[first] == n && at[other] == n })
	}
	var held []*testbed.Talker
	for range 6 {
		held = append(held, l.Hold())
		held[len(held)-1].Echoes()
	}
	evenly("six connections are three and three", 3)

	l.HandOver(append([]string{"--proxy-mode", l.Mode}, flags...)...)
	for _, c := range held {
		c.Echoes()
	}
	evenly("they are known after a hand-over", 3)
	for range 4 {
		held = append(held, l.Hold())
		held[len(held)-1].Echoes()
	}
	evenly("ten are five and five", 5)
	for _, c := range held {
		_ = c.Close()
	}
	evenly("none is left", 0)

	web(l.Pods...) // where nothing listens on the third
	l.Eventually("the endpoint that refuses is ejected", func() bool {
		if c, err := l.Client.Dial(t.Context(), "tcp", lab.WebAddr); err == nil {
			_ = c.Close()
		}
		return l.Metric(`sluice_endpoints_excluded{reason="ejected"}`) == 1
	})
	if n := l.Metric(`sluice_service_failures_total{protocol="TCP",service_name="web",service_namespace="default",service_port=""}`); n < 5 {
		t.Errorf("%v refusals were seen, want five or more", n)
	}
	for range 6 {
		l.Hold().Echoes()
	}
}
