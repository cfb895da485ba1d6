package houserules

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// rule is one house rule. The places of the broken tree that it finds, one a line, hold
// the lines of want; the fine tree looks like a breach and is none.
type rule struct {
	name, why    string
	check        func(*repo) []string // the places that break it, each with its file
	broken, fine tree
	want         string
}

// tree is files by path. What "sluice --help" writes has the name "help".
type tree map[string]string

// rules is every rule, grouped by what it looks at.
func rules() []rule {
	return slices.Concat(codeRules(), wordRules(), proseRules(), messageRules(), documentRules(), wayRules())
}

func TestRules(t *testing.T) {
	r := load(t)
	for _, rule := range append(rules(),
		rule{name: "imports go one way", check: checkImports, why: importsWhy},
		rule{name: "folders are no circle", check: checkCircles, why: foldersWhy},
		rule{name: "go.mod is the product's", check: checkRequirements, why: requirementsWhy}) {
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
	find := func(rule rule, files tree) []string {
		fsys := fstest.MapFS{}
		for name, content := range files {
			fsys[name] = &fstest.MapFile{Data: []byte(content)}
		}
		r, err := newRepo(fsys)
		if err != nil {
			t.Fatal(err)
		}
		r.help = files["help"]
		return rule.check(r)
	}
	for _, rule := range rules() {
		found, want := find(rule, rule.broken), strings.Split(rule.want, "\n")
		matches := len(found) == len(want)
		for i := range found {
			matches = matches && strings.Contains(found[i], want[i])
		}
		if !matches {
			t.Errorf("%s: found %q, want %q", rule.name, found, want)
		}
		if found := find(rule, rule.fine); len(found) > 0 {
			t.Errorf("%s: found %q in a tree that is fine", rule.name, found)
		}
	}
}
