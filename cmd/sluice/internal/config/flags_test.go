package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

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
