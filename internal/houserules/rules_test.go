package houserules

import (
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// rule is one house rule.
type rule struct {
	name  string
	why   string
	check func(*repo) []string // the places that break it, each with its file

	broken []example // trees that break it; at least one
	fine   []example // trees that look like a breach and are none
}

// example is a small tree for trying a rule.
type example struct {
	files    map[string]string // path to content; a name that ends in * is executable
	packages []pkg
	help     string
	want     []string // words that the findings hold, one entry per finding, in order
}

// rules is every rule, grouped by what it looks at.
func rules() []rule {
	return slices.Concat(importRules(), codeRules(), testRules(), treeRules(), documentRules())
}

func TestRules(t *testing.T) {
	r := load(t)
	if r.help == "" {
		t.Log("cmd/sluice has no Go code yet: the flags that documents name are not compared")
	}
	for _, rule := range rules() {
		t.Run(rule.name, func(t *testing.T) {
			found := rule.check(r)
			for _, f := range found {
				t.Error(f)
			}
			if len(found) > 0 {
				t.Logf("the rule is there because %s", rule.why)
			}
		})
	}
}

// TestRulesCanFail shows that every rule sees what it is there to see.
func TestRulesCanFail(t *testing.T) {
	for _, rule := range rules() {
		t.Run(rule.name, func(t *testing.T) {
			if len(rule.broken) == 0 || rule.why == "" {
				t.Fatal("a rule needs a reason and a tree that breaks it")
			}
			for _, ex := range slices.Concat(rule.broken, rule.fine) {
				tryExample(t, rule, ex)
			}
			for _, ex := range rule.broken {
				if len(ex.want) == 0 {
					t.Errorf("this example breaks nothing: %v", ex.files)
				}
			}
		})
	}
}

func tryExample(t *testing.T, rule rule, ex example) {
	t.Helper()
	fsys := fstest.MapFS{}
	for name, content := range ex.files {
		mode := fs.FileMode(0o644)
		if strings.HasSuffix(name, "*") {
			name, mode = strings.TrimSuffix(name, "*"), 0o755
		}
		fsys[name] = &fstest.MapFile{Data: []byte(content), Mode: mode}
	}
	r, err := newRepo(fsys)
	if err != nil {
		t.Fatal(err)
	}
	r.packages, r.help = ex.packages, ex.help
	found := rule.check(r)
	if len(found) != len(ex.want) {
		t.Errorf("found %q, want %d findings like %q", found, len(ex.want), ex.want)
		return
	}
	for i, want := range ex.want {
		if !strings.Contains(found[i], want) {
			t.Errorf("found %q, want it to say %q", found[i], want)
		}
	}
}
