package metrics

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/manifest"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

// number visits every number of a Stats; set, if not nil, gives it its value.
func number(stats any, visit func(name string, value int64), set func(i int) int64) {
	v := reflect.ValueOf(stats).Elem()
	for i := range v.NumField() {
		f := v.Field(i)
		switch f.Kind() {
		case reflect.Int, reflect.Int64:
			f.SetInt(set(i))
			visit(v.Type().Field(i).Name, f.Int())
		case reflect.Uint64:
			f.SetUint(uint64(set(i)))
			visit(v.Type().Field(i).Name, int64(f.Uint()))
		}
	}
}

// TestEveryNumberIsServed: no counter of the rooms is forgotten here, none is taken
// for another, and Prometheus's own rules of naming hold.
func TestEveryNumberIsServed(t *testing.T) {
	var ts tcp.Stats
	var us udp.Stats
	var as agent.Status
	want := map[string]string{}
	for base, stats := range map[int64]any{1000: &ts, 2000: &us, 3000: &as} {
		number(stats, func(name string, value int64) {
			want[fmt.Sprintf("%T.%s", stats, name)] = fmt.Sprintf(" %d\n", value)
		}, func(i int) int64 { return base + int64(i) })
	}
	problem := &manifest.Error{File: "web.yaml", Line: 7, Reason: "no such field"}
	budget := &eventloop.Budget{Limit: 4001}
	budget.Take(4000)
	budget.Take(2)
	m := New("v1", Sources{
		TCP: func() tcp.Stats { return ts }, UDP: func() udp.Stats { return us }, Agent: func() agent.Status { return as },
		Manifests:   func() manifest.Result { return manifest.Result{Files: 5000, Problems: []*manifest.Error{problem}} },
		Descriptors: budget,
	})
	m.ObserveSync(time.Second, errors.New("counted all the same"))

	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	page := w.Body.String()
	for _, line := range []string{
		`sluice_manifest_problem{file="web.yaml",line="7",reason="no such field"} 1`,
		"sluice_manifest_files 5000", "sluice_descriptors_used 4000", "sluice_descriptors_limit 4001", "sluice_descriptors_denied_total 1",
		`sluice_build_info{version="v1"} 1`, "kubeproxy_sync_proxy_rules_duration_seconds_count 1", "process_open_fds", "go_goroutines",
	} {
		want[line] = line
	}
	for name, text := range want {
		if !strings.Contains(page, text) {
			t.Errorf("%s is served nowhere", name)
		}
	}
	if problems, err := testutil.GatherAndLint(m.registry); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
}
