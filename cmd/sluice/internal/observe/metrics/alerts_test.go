package metrics

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/sluice-lb/sluice/internal/testbed"
)

const (
	runbooks    = "../../../../../docs/runbooks.md"
	runbooksURL = "https://github.com/sluice-lb/sluice/blob/main/docs/runbooks.md#"
)

// alert is a rule of alerts.yaml.
type alert struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

// readYAML reads a file of deploy/monitoring.
func readYAML(t *testing.T, name string, into any) (text string) {
	t.Helper()
	data, err := os.ReadFile(monitoring + name)
	check(t, err)
	check(t, yaml.Unmarshal(data, into))
	return string(data)
}

// alerts returns those of the PrometheusRule, and its text.
func alerts(t *testing.T) (all []alert, text string) {
	t.Helper()
	var rule struct {
		Spec struct{ Groups []struct{ Rules []alert } }
	}
	text = readYAML(t, "alerts.yaml", &rule)
	for _, g := range rule.Spec.Groups {
		all = append(all, g.Rules...)
	}
	return all, text
}

// TestAlertsAreWhole: a person who is woken reads what is wrong, and where there is more to read.
func TestAlertsAreWhole(t *testing.T) {
	book, err := os.ReadFile(runbooks)
	check(t, err)
	all, _ := alerts(t)
	var headings, names []string
	for _, m := range regexp.MustCompile(`(?m)^## ([A-Z]\w+)$`).FindAllStringSubmatch(string(book), -1) {
		headings = append(headings, m[1])
	}
	for _, a := range all {
		names = append(names, a.Alert)
		if a.Labels["severity"] == "" || a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("alert %+v is not whole", a)
		}
		if want := runbooksURL + strings.ToLower(a.Alert); a.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url is %q, want %s", a.Alert, a.Annotations["runbook_url"], want)
		}
	}
	if !slices.Equal(headings, names) {
		t.Errorf("docs/runbooks.md has sections %q, want one of each alert in their order: %q", headings, names)
	}
	for _, section := range strings.Split(string(book), "\n## ")[1:] {
		name, _, _ := strings.Cut(section, "\n")
		if slices.Contains(names, name) && !strings.Contains(section, "```sh node\n") {
			t.Errorf("docs/runbooks.md: %s has no command that shows more", name)
		}
	}
}

// TestRulesFile: the file for a Prometheus without the operator has the groups of the PrometheusRule.
func TestRulesFile(t *testing.T) {
	_, text := alerts(t)
	_, spec, ok := strings.Cut(text, "\nspec:\n")
	if !ok {
		t.Fatal("alerts.yaml has no spec")
	}
	plain := "# The alerts of alerts.yaml as a rule file of Prometheus, written by make docs.\n"
	for line := range strings.Lines(spec) {
		plain += strings.TrimPrefix(line, "  ")
	}
	testbed.Golden(t, monitoring+"rules.yaml", plain)
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml")
}

// promtool runs it in deploy/monitoring.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("promtool"); err != nil {
		testbed.Missing(t, "there is no promtool: make deps installs it")
	}
	cmd := exec.CommandContext(t.Context(), "promtool", args...)
	cmd.Dir = monitoring
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// alertTest is a test of rules_test.yaml.
type alertTest struct {
	Name        string
	InputSeries []struct{ Series string } `json:"input_series"`
	Expressions []struct {
		Samples []struct{ Labels string } `json:"exp_samples"`
	} `json:"promql_expr_test"`
}

// TestAlertsFire has promtool evaluate the alerts, and looks whether its tests have each of them fire and not fire, by
// labels that its texts name.
func TestAlertsFire(t *testing.T) {
	promtool(t, "test", "rules", "rules_test.yaml")
	var file struct{ Tests []alertTest }
	readYAML(t, "rules_test.yaml", &file)
	all, _ := alerts(t)
	named := regexp.MustCompile(`\$labels\.(\w+)`)
	for i, a := range all {
		if i >= len(file.Tests) || file.Tests[i].Name != a.Alert {
			t.Fatalf("rules_test.yaml has no test of %s, or not in the order of the alerts", a.Alert)
		}
		test := &file.Tests[i]
		fires, quiet := 0, false
		for _, e := range test.Expressions {
			fires += len(e.Samples)
			quiet = quiet || len(e.Samples) == 0
			for _, s := range e.Samples {
				if !strings.Contains(s.Labels, fmt.Sprintf("{alertname=%q,", a.Alert)) || strings.Contains(s.Labels,
					`"good"`) {
					t.Errorf("the test of %s has another fire: %s", a.Alert, s.Labels)
				}
				for _, text := range a.Annotations {
					for _, l := range named.FindAllStringSubmatch(text, -1) {
						if !strings.Contains(s.Labels, l[1]+"=") {
							t.Errorf("%s: %q has no value in %s", a.Alert, l[0], s.Labels)
						}
					}
				}
			}
		}
		if fires == 0 || !quiet {
			t.Errorf("the test of %s: it fires %d times, and is quiet: %v", a.Alert, fires, quiet)
		}
		if !strings.Contains(fmt.Sprint(test.InputSeries), `"good"`) &&
			a.Alert != "KubeProxyDown" { // which fires if there is none
			t.Errorf("the test of %s has no case for which it must not fire", a.Alert)
		}
	}
	if len(file.Tests) != len(all) {
		t.Errorf("rules_test.yaml has %d tests, want %d", len(file.Tests), len(all))
	}
}
