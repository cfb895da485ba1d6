package houserules

import (
	"go/ast"
	"go/token"
	"strconv"
	"strings"
)

func messageRules() []rule {
	return []rule{{
		name: "messages have no dialect", check: checkMessages,
		why:    "logs, Events, errors, help and the page have the same readers as documents",
		broken: tree{"tcp/a.go": "package x\n\nvar _ = \"it ends at once\"\n"}, want: `tcp/a.go:3: at once`,
		fine: tree{"tcp/a.go": "package x\n\nvar _ = \"it ends immediately\"\n", "tcp/a_test.go": "package x\n\nvar _ = \"at once\"\n"},
	}}
}

// messages calls do with each string of the product's Go files that is not for tests.
func (r *repo) messages(do func(f goFile, lit *ast.BasicLit, text string)) {
	for _, f := range r.files {
		if f.test() || under(f.dir(), []string{"bench", "internal/testbed"}) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil {
					do(f, lit, text)
				}
			}
			return true
		})
	}
}

// checkMessages looks at strings that people can read: those with a blank.
func checkMessages(r *repo) (found []string) {
	r.messages(func(f goFile, lit *ast.BasicLit, text string) {
		if phrase := dialect.FindString(text); phrase != "" && strings.Contains(text, " ") {
			found = append(found, f.at(lit.Pos(), "%s", phrase))
		}
	})
	return found
}

// checkEndpoints looks for the word backend.
func checkEndpoints(r *repo) (found []string) {
	r.messages(func(f goFile, lit *ast.BasicLit, text string) {
		if strings.Contains(text, "backend") {
			found = append(found, f.at(lit.Pos(), "backend"))
		}
	})
	return found
}
