// Package helm holds the chart to its documents. It has tests only; what the chart renders is tested in deploy/e2e.
package helm

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// readme is generated from the values, below this line.
const (
	readme   = "sluice/README.md"
	readmeOf = "<!-- The rest is written by make docs. -->\n"
)

// value is one that a user may set.
type value struct{ name, def, comment string }

// values returns the values of a mapping and those below it. A comment makes a value of a mapping; without one its
// fields are values.
func values(t *testing.T, prefix string, node *yaml.Node) (all []value) {
	t.Helper()
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, val := node.Content[i], node.Content[i+1]
		name, comment := prefix+key.Value, strings.Join(strings.Fields(strings.ReplaceAll(key.HeadComment, "#", " ")), " ")
		if comment == "" {
			if val.Kind != yaml.MappingNode || len(val.Content) == 0 {
				t.Errorf("%s has no comment", name)
			}
			all = append(all, values(t, name+".", val)...)
			continue
		}
		var def any
		if err := val.Decode(&def); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(def)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, value{name, string(text), comment})
	}
	return all
}

// read returns the values of the chart.
func read(t *testing.T) (root *yaml.Node, all []value) {
	t.Helper()
	text, err := os.ReadFile("sluice/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	root = document.Content[0]
	return root, values(t, "", root)
}

// TestReadme: the README lists every value, with its default and its comment.
func TestReadme(t *testing.T) {
	_, all := read(t)
	old, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	head, _, found := strings.Cut(string(old), readmeOf)
	if !found {
		t.Fatalf("%s has no line %s", readme, readmeOf)
	}
	var b strings.Builder
	b.WriteString(head + readmeOf + "\n| value | default | what it is |\n|---|---|---|\n")
	for _, v := range all {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", v.name, v.def, v.comment)
	}
	testbed.Golden(t, readme, b.String())
}

// schema is what a JSON schema says of a value.
type schema struct {
	Additional any               `json:"additionalProperties"`
	Properties map[string]schema `json:"properties"`
}

// TestSchema: the schema has every value, and none besides. A misspelled value is an error.
func TestSchema(t *testing.T) {
	root, _ := read(t)
	text, err := os.ReadFile("sluice/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var s schema
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	delete(s.Properties, "global") // which helm adds
	compare(t, "", s, root)
}

func compare(t *testing.T, name string, s schema, node *yaml.Node) {
	t.Helper()
	if s.Additional != false {
		t.Errorf("the schema takes any field of %q", name)
	}
	fields := make(map[string]bool)
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i].Value
		fields[key] = true
		below, ok := s.Properties[key]
		if !ok {
			t.Errorf("the schema has no %s%s", name, key)
		}
		if below.Properties != nil {
			compare(t, name+key+".", below, node.Content[i+1])
		}
	}
	for key := range s.Properties {
		if !fields[key] && name != "resources." {
			t.Errorf("the schema has %s%s, which values.yaml has not", name, key)
		}
	}
}
