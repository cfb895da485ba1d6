package metrics

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/yaml"
)

const monitoring = "../../../../deploy/monitoring/"

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
