package metrics

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/yaml"
)

const monitoring = "../../../../../deploy/monitoring/"

// expressions returns every PromQL expression of the alerts and the dashboard, and fails
// on fields that only look like some.
func expressions(t *testing.T) (all []string) {
	t.Helper()
	rules, _ := alerts(t)
	for _, r := range rules {
		all = append(all, r.Expr)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct {
				Name  string
				Query json.RawMessage
			}
		}
	}
	readYAML(t, "dashboard.json", &dashboard)
	for i, p := range dashboard.Panels {
		if p.Title == "" || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %d %q at %+v", i, p.Title, p.GridPos)
		}
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	for _, v := range dashboard.Templating.List {
		all = append(all, strings.ReplaceAll(string(v.Query), `\"`, `"`))
	}
	if len(all) < 30 || slices.Contains(all, "") {
		t.Fatalf("%d expressions: %q", len(all), all)
	}
	return all
}

var (
	metricName = regexp.MustCompile(`\b((?:kubeproxy|sluice|rest_client|process)_\w+)(?:\{([^}]*)\})?`)
	matcher    = regexp.MustCompile(`(\w+)(?:=~|!~|!=|=)`)
	grouping   = regexp.MustCompile(`\bby \(([^)]*)\)`)
	rated      = regexp.MustCompile(`\b(?:rate|increase)\((\w+)`)
)

// TestMonitoring: alerts and dashboard ask for what there is, by labels that it has,
// and take the rate of counters only.
func TestMonitoring(t *testing.T) {
	m, _ := whole(t)
	families, err := m.registry.Gather()
	check(t, err)
	kinds, labels := map[string]dto.MetricType{}, map[string][]string{}
	for _, f := range families {
		name := f.GetName()
		kinds[name] = f.GetType()
		labels[name] = []string{"job", "instance"} // of every target
		for _, metric := range f.GetMetric() {
			for _, l := range metric.GetLabel() {
				labels[name] = append(labels[name], l.GetName())
			}
		}
		if f.GetType() == dto.MetricType_HISTOGRAM {
			for _, part := range []string{"_bucket", "_count", "_sum"} {
				kinds[name+part], labels[name+part] = dto.MetricType_COUNTER, append(labels[name], "le")
			}
			delete(kinds, name)
		}
	}
	for _, expr := range expressions(t) {
		var known []string
		for _, found := range metricName.FindAllStringSubmatch(expr, -1) {
			name := found[1]
			if _, ok := kinds[name]; !ok {
				t.Errorf("%s: there is no series %s", expr, name)
			}
			known = append(known, labels[name]...)
			for _, l := range matcher.FindAllStringSubmatch(found[2], -1) {
				if !slices.Contains(labels[name], l[1]) {
					t.Errorf("%s: %s has no label %s, but %v", expr, name, l[1], labels[name])
				}
			}
		}
		for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
			for l := range strings.SplitSeq(g[1], ", ") {
				if !slices.Contains(known, l) {
					t.Errorf("%s: nothing in it has a label %s", expr, l)
				}
			}
		}
		for _, r := range rated.FindAllStringSubmatch(expr, -1) {
			if kinds[r[1]] != dto.MetricType_COUNTER {
				t.Errorf("%s: %s is no counter", expr, r[1])
			}
		}
	}
}

// kept are the metrics that no alert, panel or page uses. The list stays short: a metric that nothing uses goes.
var kept = map[string]string{
	"sluice_services":                      "what is applied, which scripts wait for",
	"sluice_endpoints":                     "the same",
	"sluice_manifest_problems":             "the only one that names a rejected file",
	"sluice_setting_info":                  "sluice explain reads it",
	"sluice_handover_frozen_seconds":       "the pause of an upgrade, which is shown nowhere else",
	"sluice_deferred_total":                "what an incident needs, and only the log has otherwise",
	"sluice_dropped_records_total":         "the same: what the log, the access log and events lack",
	"sluice_ejections_total":               "why failing endpoints are not ejected",
	"sluice_data_path_moves_total":         "Services that go to and fro between data paths",
	"sluice_queue_flows_total":             "flows whose endpoint the kernel chose in place of Sluice",
	"sluice_service_bytes_total":           "traffic of each Service, for queries",
	"sluice_service_kernel_bytes_total":    "the same for what the kernel forwards",
	"sluice_service_kernel_active":         "sluice_service_active for what the kernel forwards",
	"sluice_service_queued":                "sluice_service_held for clients that wait for room",
	"sluice_service_evicted_clients_total": "clients that have lost their affinity",
}

// TestMetricsAreUsed: a metric of the table is one that an alert, the dashboard or a page of docs uses, or it is in
// kept. Those that alerts ask for are BETA.
func TestMetricsAreUsed(t *testing.T) {
	m, _ := whole(t)
	families, err := m.registry.Gather()
	check(t, err)
	text := strings.Join(expressions(t), "\n")
	pages, err := filepath.Glob("../../../../../docs/*.md")
	check(t, err)
	for _, page := range pages {
		data, err := os.ReadFile(page)
		check(t, err)
		text += string(data)
	}
	rules, _ := alerts(t)
	left := maps.Clone(kept)
	var alerted strings.Builder
	for _, r := range rules {
		alerted.WriteString(r.Expr + "\n")
		text += r.Annotations["description"]
	}
	for _, f := range families {
		name := f.GetName()
		if !strings.HasPrefix(name, "sluice_") {
			continue // of kube-proxy, client-go or Prometheus
		}
		in := regexp.MustCompile(`\b` + name + `(_bucket|_count|_sum)?\b`).MatchString
		used, reason := in(text), kept[name]
		delete(left, name)
		if used == (reason != "") {
			t.Errorf("%s is used: %v; reason to keep it if it is not: %q", name, used, reason)
		}
		if beta := strings.HasPrefix(f.GetHelp(), "[BETA] "); beta != in(alerted.String()) {
			t.Errorf("%s is BETA: %v, which only what alerts ask for is to be", name, beta)
		}
	}
	for name := range left {
		t.Errorf("there is no metric %s", name)
	}
}

// TestExpressionsParse: each is PromQL. Queries of variables are functions of Grafana's.
func TestExpressionsParse(t *testing.T) {
	var rules struct {
		Groups []any `json:"groups"`
	}
	for i, expr := range expressions(t) {
		if !strings.Contains(expr, "label_values(") && expr != `"prometheus"` && expr != `"kube-proxy"` {
			rule := map[string]string{"record": "x", "expr": strings.ReplaceAll(expr, "$", "")}
			rules.Groups = append(rules.Groups, map[string]any{"name": fmt.Sprint(i), "rules": []any{rule}})
		}
	}
	data, err := yaml.Marshal(rules)
	check(t, err)
	file := filepath.Join(t.TempDir(), "rules.yaml")
	check(t, os.WriteFile(file, data, 0o600))
	promtool(t, "check", "rules", file)
}
