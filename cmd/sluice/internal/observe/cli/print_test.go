package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"

	"sigs.k8s.io/yaml"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
)

// TestClean: what a terminal obeys is escaped, and everything else is as it was.
func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"web":                  "web",
		"größe → 日本":           "größe → 日本",
		"a\x1b[31mred":         `a\x1b[31mred`,
		"a\nb\tc\r\x00":        `a\x0ab\x09c\x0d\x00`,
		"\u009b2J\u202e":       `\u009b2J\u202e`,
		"\xff\xfe":             `\xff\xfe`,
		"\uFFFD":               "\uFFFD",
		"\U000e0001":           `\U000e0001`,
		"<script>&":            "<script>&",
		"a\u200bb\u2028\u007f": `a\u200bb\u2028\x7f`,
	} {
		if got := clean(in); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
	if got := Lines("a\x1b\nb\x07\n"); got != "a\\x1b\nb\\x07\n" {
		t.Errorf("Lines = %q", got)
	}
}

const hostile = "x\x1b[31m\n\u202e\u009b<b>\U000e0001 # a: b"

// TestNarrow: no line takes more columns than there are, and what is no terminal gets all.
func TestNarrow(t *testing.T) {
	for columns, want := range map[int]string{0: "größe 12\n\nabc\n", 3: "grö\n\nabc\n", 80: "größe 12\n\nabc\n"} {
		if got := narrow("größe 12\n\nabc\n", columns); got != want {
			t.Errorf("of %d columns: %q, want %q", columns, got, want)
		}
	}
}

// TestHostileNames: no form of output has anything that a terminal obeys, and JSON and YAML say what was there.
func TestHostileNames(t *testing.T) {
	services := []api.Service{{ID: api.ID{Namespace: hostile, Name: hostile, Port: hostile, Protocol: "TCP"},
		Path: api.Path{Fallback: hostile}, Policies: []api.Policy{{Name: hostile, Value: hostile}}}}
	endpoints := []api.Endpoint{{Service: services[0].ID, Reason: hostile, Ejection: &api.Ejection{Reason: hostile}}}
	events := []api.Event{{Namespace: hostile, Service: hostile, Note: hostile, Reason: hostile}}
	drains := []api.Drain{{Endpoint: hostile, Namespace: hostile, Name: hostile, By: hostile}}
	values := []api.Setting{{Name: hostile, Value: hostile}}
	status := api.Status{Node: hostile, Source: api.Source{Trouble: hostile, APIServer: hostile},
		Sync: api.Sync{LastError: hostile}}
	for _, form := range []string{asTable, asWide, asJSON, asYAML} {
		var out bytes.Buffer
		v := &view{out: &out, errs: &out, form: form}
		for _, err := range []error{
			v.show(list(services), func() *table { return servicesTable(services, form == asWide) }),
			v.show(list(endpoints), func() *table { return endpointsTable(endpoints) }),
			v.show(list(events), func() *table { return eventsTable(events) }),
			v.show(list(drains), func() *table { return drainsTable(drains) }),
			v.say(drains[0], drainedText(&drains[0], false)),
			v.show(list(values), func() *table { return settingsTable(values) }),
			v.show(status, func() *table { return statusTable(&status) }),
		} {
			if err != nil {
				t.Error(err)
			}
		}
		for _, r := range out.String() {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Fatalf("%s has %U:\n%q", form, r, out.String())
			}
		}
	}
	for _, asYAML := range []bool{false, true} {
		var out bytes.Buffer
		if err := Print(&out, list(events), asYAML); err != nil {
			t.Fatal(err)
		}
		text := out.Bytes()
		if asYAML {
			var err error
			if text, err = yaml.YAMLToJSON(text); err != nil {
				t.Fatalf("%v in %s", err, out.String())
			}
		}
		var got api.List[api.Event]
		if err := json.Unmarshal(text, &got); err != nil || len(got.Items) != 1 || got.Items[0].Note != hostile {
			t.Errorf("yaml %v: %+v, %v in %s", asYAML, got, err, out.String())
		}
	}
}

// TestTable: columns are as wide as their widest cell, and those for wide output are at the end.
func TestTable(t *testing.T) {
	tab := &table{header: []string{"NAME", "N", "WHY"}, wide: 1}
	tab.add("a-long-name", 1, "x")
	tab.add("", 2, "")
	for _, x := range []struct {
		wide, bare bool
		want       string
	}{
		{false, false, "NAME          N\na-long-name   1\n<none>        2\n"},
		{true, true, "a-long-name   1     x\n<none>        2     <none>\n"},
	} {
		var out bytes.Buffer
		if err := tab.print(&out, x.wide, x.bare); err != nil || out.String() != x.want {
			t.Errorf("%q, %v, want %q", out.String(), err, x.want)
		}
	}
	var out, errs bytes.Buffer
	for _, form := range []string{asTable, asJSON, asYAML} {
		v := &view{out: &out, errs: &errs, form: form}
		out.Reset()
		if err := v.show(list([]api.Drain{}), func() *table { return drainsTable(nil) }); err != nil ||
			out.String() != map[string]string{asJSON: "{\n  \"items\": []\n}\n", asYAML: "items: []\n"}[form] {
			t.Errorf("nothing as %s: %q, %v", form, out.String(), err)
		}
	}
	if errs.String() != "nothing found\n" {
		t.Errorf("nothing is said to be %q", errs.String())
	}
	for n, want := range map[uint64]string{0: "0", 9999: "9999", 10_240: "10.0Ki", 5 << 30: "5.0Gi",
		1<<64 - 1: "16.0Ei"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %s, want %s", n, got, want)
		}
	}
}

// TestQuery: a Service can be named with its namespace, in either way but not in two.
func TestQuery(t *testing.T) {
	for _, x := range []struct{ namespace, arg, want string }{
		{"", "web", "name=web"}, {"a", "web", "name=web&namespace=a"}, {"", "a/web", "name=web&namespace=a"},
		{"a", "a/web", "name=web&namespace=a"}, {"b", "a/web", "contradicts"}, {"", "a/", "is empty"},
	} {
		q, err := (&view{namespace: x.namespace}).query([]string{x.arg})
		got := q.Encode()
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, x.want) {
			t.Errorf("%q of %q: %s, want %s", x.arg, x.namespace, got, x.want)
		}
	}
}

// TestStatusTable: what is out of order catches the eye.
func TestStatusTable(t *testing.T) {
	at := time.Now()
	s := api.Status{HandOvers: api.HandOvers{Count: 2, Last: &at, From: 7},
		PacketFilter: &api.Chosen{Name: "iptables", Requested: true},
		Services:     api.ServiceCounts{Paths: map[string]int{"ipvs": 1, "userspace": 2}, Fallbacks: 3, Conflicts: 4},
		Sync:         api.Sync{LastError: "no rules", Waiting: &at}}
	var out bytes.Buffer
	if err := statusTable(&s).print(&out, false, true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"hand-overs 2, the last 0s ago from process 7", "iptables (requested)",
		"NOT HEALTHY", "no rules",
		"ipvs 1, userspace 2; 3 not on the path requested; 4 addresses"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}
