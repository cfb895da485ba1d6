package houserules

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"strings"
)

// banned are words that the field does not use for programs and packets. A machine is not
// a person: name the process, the endpoint, the packet.
var banned = regexp.MustCompile(`(?i)\b(wish(es|ed)?|unmet|nobody|somebody|whoever|whomever|in vain|forsakes?|told|` +
	`put right|stood still)\b`)

// logKey is the form of a key of a log line, which queries name.
var logKey = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

func wordRules() []rule {
	return []rule{
		{
			name: "log keys are snake_case", check: checkLogKeys,
			why:    "queries of logs name keys, and a key with blanks cannot be named in most of them",
			broken: tree{"tcp/a.go": "package x\n\nvar _ = zap.Int(\"udp flows\", 1)\n"}, want: `tcp/a.go:3: the log key "udp flows"`,
			fine: tree{"tcp/a.go": "package x\n\nvar _ = zap.Int(\"udp_flows\", 1)\nvar _ = zap.Error(err)\n"},
		},
		{
			name: "the field's own words are used", check: checkWords,
			why:    "users of HAProxy, Envoy and kube-proxy, and those who translate, know one word for one thing",
			broken: tree{"README.md": "# A\n\nNobody listens.\n", "tcp/a.go": "package x\n\n// It is told.\nvar a = \"a wish\"\n"},
			want:   "tcp/a.go:3: told\ntcp/a.go:4: wish\nREADME.md:3: Nobody",
			fine:   tree{"tcp/a_test.go": "package x\n\n// nobody\n", "lb/testdata/a.md": "nobody"},
		},
		{
			name: "users read endpoint, not backend", check: checkEndpoints,
			why:    "one thing has one word in messages, metrics and logs, and Kubernetes says endpoint",
			broken: tree{"tcp/a.go": "package x\n\nvar a = \"no_backend\"\n"}, want: "tcp/a.go:3: backend",
			fine: tree{"tcp/a.go": "package x\n\nvar backend = \"endpoint\"\n", "bench/a.go": "package x\n\nvar a = `backend`\n"},
		},
	}
}

// checkLogKeys looks at the first argument of zap's constructors of fields.
func checkLogKeys(r *repo) []string {
	var found []string
	for _, f := range r.files {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			s, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			lit, isString := call.Args[0].(*ast.BasicLit)
			if x, ok := s.X.(*ast.Ident); !ok || x.Name != "zap" || !isString || lit.Kind != token.STRING {
				return true
			}
			if key := strings.Trim(lit.Value, "\"`"); !logKey.MatchString(key) {
				found = append(found, f.at(lit.Pos(), "the log key %q is not snake_case", key))
			}
			return true
		})
	}
	return found
}

// checkWords looks for banned words in the product's Go files and in documents.
func checkWords(r *repo) []string {
	var found []string
	look := func(name, text string) {
		for i, line := range strings.Split(text, "\n") {
			if word := banned.FindString(line); word != "" {
				found = append(found, fmt.Sprintf("%s:%d: %s", name, i+1, word))
			}
		}
	}
	for _, f := range r.files {
		if !f.test() {
			look(f.path, f.src)
		}
	}
	for _, doc := range r.documents() {
		if path.Base(doc) != "CHANGELOG.md" {
			look(doc, r.text(doc))
		}
	}
	return found
}
