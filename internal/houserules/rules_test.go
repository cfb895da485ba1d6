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
	name   string
	why    string
	check  func(*repo) []string // the places that break it, each with its file
	broken []example            // trees that break it; at least one
	fine   []example            // trees that look like a breach and are none

	pending bool // what breaks it is listed, and no failure yet
}

// example is a small tree for trying a rule.
type example struct {
	files    tree
	packages []pkg
	help     string
	want     []string // words that the findings hold, one entry per finding, in order
}

// tree is files by path.
type tree map[string]string

// breaks is an example that breaks a rule, and wants is what is found.
func breaks(files tree, wants ...string) example { return example{files: files, want: wants} }

// rules is every rule, grouped by what it looks at.
func rules() []rule {
	return slices.Concat(importRules(), codeRules(), wordRules(), documentRules(), wayRules())
}

func TestRules(t *testing.T) {
	r := load(t)
	for _, rule := range rules() {
		t.Run(rule.name, func(t *testing.T) {
			found := rule.check(r)
			for _, f := range found {
				if rule.pending {
					t.Log(f)
				} else {
					t.Error(f)
				}
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
		})
	}
}

func tryExample(t *testing.T, rule rule, ex example) {
	t.Helper()
	fsys := fstest.MapFS{}
	for name, content := range ex.files {
		fsys[name] = &fstest.MapFile{Data: []byte(content), Mode: fs.FileMode(0o644)}
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
