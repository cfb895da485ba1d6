package config

import (
	"net/url"
	"slices"
	"strings"
)

// Setting is a value in effect, and where it comes from.
type Setting struct {
	Name  string `json:"name"`            // of the flag
	Field string `json:"field,omitempty"` // of the file of --config that the flag stands for
	Value string `json:"value"`           // without credentials
	From  string `json:"from"`            // flag, file or default
}

// Where a Setting comes from.
const (
	FromFlag    = "flag"
	FromFile    = "file"
	FromDefault = "default"
)

// spellings are other flags for the same value: their values are shown under the first name.
var spellings = map[string]string{"cleanup-on-exit": "on-exit", "healthz-port": "healthz-bind-address",
	"metrics-port": "metrics-bind-address", "conntrack-max": "conntrack-min"}

// actions are flags that say what to do in place of serving.
var actions = []string{"write-config-to", "init-only", "cleanup", "cleanup-iptables", "version", "help"}

// inForce returns the values in effect, in the order of --help.
func (s *settings) inForce() (out []Setting) {
	groups := s.groups() // once more: a file has brought other pointers
	for _, g := range groups[:len(groups)-1] {
		flags := g.flagSet()
		for _, o := range g.options {
			if spellings[o.name] != "" || slices.Contains(actions, o.name) {
				continue
			}
			value := flags.Lookup(o.name).Value.String()
			if o.name == "hostname-override" {
				value = s.Node.Name
			}
			out = append(out, Setting{o.name, o.field, redacted(value), s.from(o)})
		}
	}
	return out
}

// redacted is a value without the credentials of a URL.
func redacted(value string) string {
	u, err := url.Parse(value)
	if err != nil || u.User == nil {
		return value
	}
	u.User = url.User("REDACTED")
	return u.String()
}

// from says where the value of an option comes from.
func (s *settings) from(o option) string {
	changed := s.flags.Changed(o.name)
	for other, name := range spellings {
		changed = changed || name == o.name && s.flags.Changed(other)
	}
	switch {
	case changed && (s.File == "" || s.effectiveBesideFile(o)):
		return FromFlag
	case s.File != "" && o.field != "" && has(s.given, strings.Split(o.field, ".")):
		return FromFile
	}
	return FromDefault
}

// has reports whether a document has a field.
func has(fields map[string]any, path []string) bool {
	value, ok := fields[path[0]]
	if !ok || len(path) == 1 {
		return ok
	}
	inner, _ := value.(map[string]any)
	return has(inner, path[1:])
}
