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

// checkMessages looks at the strings of the product that people can read: those with a blank.
func checkMessages(r *repo) (found []string) {
	for _, f := range r.files {
		if f.test() {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(lit.Value)
			if phrase := dialect.FindString(text); err == nil && phrase != "" && strings.Contains(text, " ") {
				found = append(found, f.at(lit.Pos(), "%s", phrase))
			}
			return true
		})
	}
	return found
}
