package houserules

import (
	"go/ast"
	"slices"
	"strings"
)

// testRules are about waiting and skipping, where tests go wrong most often.
func testRules() []rule {
	sleep := "package x\n\nimport \"time\"\n\nfunc f() {\n\ttime.Sleep(1)\n}\n"
	explained := strings.Replace(sleep, "\ttime.", "\t// The kernel tells nobody when it forgets the neighbour.\n\ttime.", 1)
	return []rule{
		{
			name: "nothing sleeps", check: checkSleeps,
			why: "a sleep is too long on one machine and too short on another; wait for the event, and where there is none say so and poll",
			broken: []example{
				{files: map[string]string{"tcp/a.go": explained}, want: []string{"tcp/a.go:7: Sleep outside tests"}},
				{files: map[string]string{"tcp/a_test.go": sleep}, want: []string{"tcp/a_test.go:6: Sleep without"}},
				{files: map[string]string{"bench/testbed/a.go": sleep}, want: []string{"without a comment"}},
				{files: map[string]string{"tcp/a_test.go": strings.Replace(sleep, "time.Sleep", "<-time.After", 1)}, want: []string{"After without"}},
				{files: map[string]string{"tcp/a.go": "package x\n\nimport zeit \"time\"\n\nvar f = zeit.Sleep\n"}, want: []string{"Sleep outside tests"}},
			},
			fine: []example{{files: map[string]string{
				"tcp/a_test.go":      explained,
				"bench/testbed/a.go": explained,
				"tcp/b_test.go":      "package x\n\nimport \"time\"\n\nfunc f() {\n\tselect {\n\tcase <-time.After(1):\n\t}\n}\n",
			}}},
		},
		{
			name: "a skip gives its reason", check: checkSkips,
			why: "a test that silently did not run looks like one that passed",
			broken: []example{
				{files: map[string]string{"tcp/a_test.go": "package x\n\nfunc f() {\n\tt.SkipNow()\n\ttb.Skip()\n\tb.Skipf(\"\")\n}\n"}, want: []string{"a_test.go:4", "a_test.go:5", "a_test.go:6"}},
			},
			fine: []example{{files: map[string]string{"tcp/a_test.go": "package x\n\nfunc f() {\n\tt.Skip(\"no SCTP in this kernel\")\n\tdecoder.Skip()\n}\n"}}},
		},
	}
}

// checkSleeps forbids sleeping in what we ship, and wants a comment on the line
// of a sleep or above it in tests and in bench.
func checkSleeps(r *repo) []string {
	var found []string
	for _, f := range r.files {
		name := importName(f, "time")
		if name == "" {
			continue
		}
		commented := map[int]bool{}
		for _, group := range f.ast.Comments {
			for l := f.line(group.Pos()); l <= f.line(group.End()); l++ {
				commented[l] = true
			}
		}
		for _, s := range sleeps(f.ast, name) {
			line := f.line(s.Pos())
			if !f.test() && !under(f.dir(), []string{"bench"}) {
				found = append(found, f.at(s.Pos(), "%s outside tests", s.Sel.Name))
			} else if !commented[line] && !commented[line-1] {
				found = append(found, f.at(s.Pos(), "%s without a comment that says why no event can be awaited", s.Sel.Name))
			}
		}
	}
	return found
}

// sleeps finds time.Sleep, and time.After where it is waited for alone, given the
// name under which the file knows package time.
func sleeps(file *ast.File, name string) []*ast.SelectorExpr {
	var found []*ast.SelectorExpr
	of := func(e ast.Expr, sel string) *ast.SelectorExpr {
		s, ok := e.(*ast.SelectorExpr)
		if !ok || s.Sel.Name != sel {
			return nil
		}
		if x, ok := s.X.(*ast.Ident); !ok || x.Name != name {
			return nil
		}
		return s
	}
	inSelect := map[ast.Stmt]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CommClause:
			inSelect[n.Comm] = true
		case *ast.SelectorExpr:
			if s := of(n, "Sleep"); s != nil {
				found = append(found, s)
			}
		case *ast.ExprStmt:
			receive, ok := n.X.(*ast.UnaryExpr)
			if !ok || inSelect[n] {
				break
			}
			if call, ok := receive.X.(*ast.CallExpr); ok {
				if s := of(call.Fun, "After"); s != nil {
					found = append(found, s)
				}
			}
		}
		return true
	})
	return found
}

// importName is the name under which the file knows a package, "" if it does not
// import it.
func importName(f goFile, path string) string {
	for _, s := range f.ast.Imports {
		if strings.Trim(s.Path.Value, `"`) != path {
			continue
		}
		if s.Name != nil {
			return s.Name.Name
		}
		return path[strings.LastIndex(path, "/")+1:]
	}
	return ""
}

// checkSkips wants words in every skip of a test, benchmark or fuzz target, which
// are recognised by the customary names.
func checkSkips(r *repo) []string {
	var found []string
	for _, f := range r.files {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			s, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := s.X.(*ast.Ident)
			if !ok || !slices.Contains([]string{"t", "b", "f", "tb"}, x.Name) {
				return true
			}
			switch s.Sel.Name {
			case "SkipNow":
				found = append(found, f.at(call.Pos(), "SkipNow gives no reason"))
			case "Skip", "Skipf":
				if len(call.Args) == 0 || emptyString(call.Args[0]) {
					found = append(found, f.at(call.Pos(), "%s without a reason", s.Sel.Name))
				}
			}
			return true
		})
	}
	return found
}

func emptyString(e ast.Expr) bool {
	lit, ok := e.(*ast.BasicLit)
	return ok && strings.Trim(lit.Value, "\"` ") == ""
}
