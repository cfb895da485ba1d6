package e2e

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestPage: the page and the API of the metrics address show what the socket does, to this host alone unless --page
// says otherwise, and what the node did before a hand-over.
func TestPage(t *testing.T) {
	t.Parallel()
	run := filepath.Join(t.TempDir(), "run")
	l := looker{lab.New(t, testbed.Config{}), filepath.Join(run, "api.sock")}
	l.ServeEcho()
	flags := []string{"--handover-socket", filepath.Join(run, "handover.sock"), "--hostname-override", "node-1",
		"--metrics-bind-address", "0.0.0.0:10249"}
	l.Start(flags...)
	const here = "http://127.0.0.1:10249"
	l.Eventually("the page is served", func() bool { code, _ := l.Get(here + "/"); return code == 200 })
	c := l.dial()
	c.Echoes()

	// One Service by page, API over HTTP, and socket.
	var list api.List[api.Service]
	if code, body := l.Get(here + "/v1/services"); code != 200 || json.Unmarshal([]byte(body), &list) != nil ||
		len(list.Items) != 1 || list.Items[0].Counted != l.webPort().Counted || list.Items[0].Active != 1 {
		t.Errorf("/v1/services = %d %s", code, body)
	}
	l.Eventually("the page has the connection, a second later", func() bool {
		_, body := l.Get(here + "/?sort=open")
		return strings.Contains(body, "default/web") && strings.Contains(body, "<b>node-1</b>") &&
			strings.Contains(body, `data-label="Endpoints">3 / 3</td><td class="number" data-label="Open">1</td>`)
	})
	if code, body := l.Get(here + "/service?namespace=default&name=web"); code != 200 ||
		!strings.Contains(body, l.Pods[0].Addr4.String()+":8080") || !strings.Contains(body, "ServiceAdded") {
		t.Errorf("the page of the Service = %d %s", code, body)
	}
	_ = c.Close()

	// The same address from elsewhere, and by another name.
	node := "http://" + l.Node.Addr4.String() + ":10249"
	from := func(h *testbed.Host, args ...string) string {
		t.Helper()
		out, err := h.Command(t.Context(), "curl", append([]string{"--silent", "--max-time", "30", "--output",
			"/dev/null",
			"--write-out", "%{http_code}"}, args...)...).Output()
		testbed.Check(t, err)
		return string(out)
	}
	for _, path := range []string{"/", "/service?namespace=default&name=web", "/events", "/v1", "/v1/endpoints"} {
		if code := from(l.Client, node+path); code != "403" {
			t.Errorf("another host gets %s of %s", code, path)
		}
		if code := from(l.Node, node+path); code != "403" {
			t.Errorf("this host gets %s of %s by its own address", code, path)
		}
		if code := from(l.Node, "--header", "Host: evil.example", here+path); code != "403" {
			t.Errorf("by the name of another site there is %s of %s", code, path)
		}
	}
	if code := from(l.Client, node+"/metrics"); code != "200" {
		t.Errorf("another host gets %s of /metrics", code)
	}

	// What there was before a hand-over is remembered, with the hand-over.
	history := func() []api.Sample {
		var samples api.List[api.Sample]
		_, body := l.Get(here + "/v1/history")
		_ = json.Unmarshal([]byte(body), &samples) // none while the next process starts
		return samples.Items
	}
	l.Eventually("a sample is taken", func() bool { return len(history()) > 0 })
	first := history()[0].Time
	again := func(page string) {
		t.Helper()
		l.HandOver(append([]string{"--page", page}, flags...)...)
	}
	again("always")
	l.Eventually("the samples cross the hand-over", func() bool {
		all := history()
		return len(all) > 1 && all[0].Time.Equal(first) && all[len(all)-1].Time.After(first) &&
			strings.Contains(func() string { _, body := l.Get(here + "/"); return body }(), "Hand-over at ")
	})
	if code := from(l.Client, node+"/"); code != "200" {
		t.Errorf("with --page=always another host gets %s", code)
	}
	again("never")
	l.Eventually("the next process answers", func() bool { code, _ := l.Get(here + "/healthz"); return code == 200 })
	l.Eventually("there is no page", func() bool { code, _ := l.Get(here + "/"); return code == 404 })
	if code, _ := l.Get(here + "/v1/status"); code != 404 {
		t.Errorf("with --page=never /v1/status = %d", code)
	}
	if s := read[api.Status](l, "status"); s.HandOvers.Count != 2 {
		t.Errorf("the socket has %+v", s)
	}
}
