package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/sluice-lb/sluice/bench/testbed"
)

const (
	flagsPage  = "../../../../docs/flags.md"
	flagsIntro = `# Flags

All flags of ` + "`sluice`" + `, as ` + "`sluice --help`" + ` prints them. Sluice takes every flag of kube-proxy 1.8 to 1.36, with its
type and default. A flag with a field stands for that field of the file of ` + "`--config`" + ` (KubeProxyConfiguration,
v1alpha1); with a file such flags are ignored, but for ` + "`--hostname-override`" + ` and those of the log. The log names
flags and fields that are ignored.

Written by ` + "`SLUICE_UPDATE=1 go test ./cmd/sluice/internal/config -run TestFlagsPage`" + `; a test keeps it true.
`
)

// TestFlagsPage keeps docs/flags.md equal to the options: names, types, defaults,
// fields and help.
func TestFlagsPage(t *testing.T) {
	s, groups := declare()
	var b strings.Builder
	b.WriteString(flagsIntro)
	for _, g := range groups {
		fmt.Fprintf(&b, "\n## %s\n\n| flag | type | default | field | meaning |\n|---|---|---|---|---|\n", g.title)
		g.flagSet().VisitAll(func(f *pflag.Flag) {
			_, usage := pflag.UnquoteUsage(f)
			value, field := f.DefValue, s.options[f.Name].field
			switch {
			case f.Name == "loops":
				value = "one per core"
			case value == "[]":
				value = ""
			case value != "":
				value = "`" + value + "`"
			}
			if field != "" {
				field = "`" + field + "`"
			}
			fmt.Fprintf(&b, "| `--%s` | %s | %s | %s | %s |\n", f.Name, f.Value.Type(), value, field, strings.ReplaceAll(usage, "|", "\\|"))
		})
	}
	testbed.Golden(t, flagsPage, b.String())
}

// TestUnderscores: flags of klog have been written both ways.
func TestUnderscores(t *testing.T) {
	s, _ := declare()
	s.flags.VisitAll(func(f *pflag.Flag) {
		if f.Value.Type() != "string" {
			return
		}
		if _, err := Parse([]string{"--" + strings.ReplaceAll(f.Name, "-", "_") + "=", "--help"}); err != nil {
			t.Errorf("--%s with underscores: %v", f.Name, err)
		}
	})
}

// TestFields: the field that a flag names is one of the document.
func TestFields(t *testing.T) {
	s, _ := declare()
	for name, o := range s.options {
		if o.field == "" {
			continue
		}
		var warnings []string
		err := errors.New("")
		for _, value := range []string{"null", "0s"} { // a duration cannot be null
			if err != nil {
				_, warnings, err = decodeDocument([]byte(header + nest(o.field) + value + "\n"))
			}
		}
		if err != nil || len(warnings) > 0 {
			t.Errorf("--%s: %s is not a field: %v %q", name, o.field, err, warnings)
		}
	}
}

// nest writes a path of fields as YAML, without the value.
func nest(path string) string {
	var b strings.Builder
	for i, name := range strings.Split(path, ".") {
		fmt.Fprintf(&b, "\n%s%s:", strings.Repeat("  ", i), name)
	}
	return b.String() + " "
}
