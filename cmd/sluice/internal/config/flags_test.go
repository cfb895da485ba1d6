package config

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// ownTypes are kube-proxy's types of values that are strings here, checked later
// so that the error can say what to give, or have another name.
var ownTypes = map[string]string{"ip": "string", "ipport": "string", "port-range": "string", "ProxyMode": "string", "LocalMode": "string",
	"cidrs": "string", "severity": "string", "traceLocation": "string", "strings": "stringSlice", "uint": "uint64"}

// TestFlagTable holds every flag against the table of kube-proxy's: name, type,
// default and the beginning of the help.
func TestFlagTable(t *testing.T) {
	text, err := os.ReadFile("testdata/flags.txt")
	if err != nil {
		t.Fatal(err)
	}
	s, groups := declare()
	group := map[string]string{}
	for _, g := range groups {
		g.flags.VisitAll(func(f *pflag.Flag) { group[f.Name] = g.title })
	}
	title, seen := "", map[string]bool{}
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if heading, ok := strings.CutPrefix(line, "# "); ok || line == "" {
			title = heading
			continue
		}
		row := strings.Split(line, "|")
		if len(row) != 5 {
			t.Fatalf("line %d has %d columns: %s", i+1, len(row), line)
		}
		for j := range row {
			row[j] = strings.TrimSpace(row[j])
		}
		name, kind, value, release, help := row[0], row[1], row[2], row[3], row[4]
		seen[name] = true
		f := s.flags.Lookup(name)
		if f == nil {
			t.Errorf("--%s is missing", name)
			continue
		}
		if own, ok := ownTypes[kind]; ok {
			kind = own
		}
		if f.Value.Type() != kind {
			t.Errorf("--%s is a %s, want %s", name, f.Value.Type(), kind)
		}
		switch {
		case value == "(cores)":
			value = strconv.Itoa(runtime.GOMAXPROCS(0))
		case value == "" && kind == "bool":
			value = "false"
		case value == "" && strings.HasPrefix(kind, "string") && kind != "string":
			value = "[]"
		}
		if f.DefValue != value {
			t.Errorf("--%s has the default %q, want %q", name, f.DefValue, value)
		}
		if _, usage := pflag.UnquoteUsage(f); help == "" || !strings.HasPrefix(usage, help) {
			t.Errorf("the help of --%s is %q, want it to begin with %q", name, usage, help)
		}
		if group[name] != title {
			t.Errorf("--%s is in the group %q of the help, want %q", name, group[name], title)
		}
		switch release {
		case "now", "1.25", "older", "windows", "sluice":
		default:
			t.Errorf("--%s: %q is no column", name, release)
		}
		if _, err := Parse([]string{"--" + strings.ReplaceAll(name, "-", "_") + "=", "--help"}); kind == "string" && err != nil {
			t.Errorf("--%s with underscores: %v", name, err)
		}
	}
	s.flags.VisitAll(func(f *pflag.Flag) {
		if !seen[f.Name] {
			t.Errorf("--%s is not in the table", f.Name)
		}
	})
}
