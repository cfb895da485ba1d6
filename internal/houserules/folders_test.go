package houserules

import (
	"go/ast"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"
)

const foldersWhy = "one who stands in a folder sees what is below it; of two folders that import each other none is"

// TestCirclesCanFail shows which imports of folders are a circle.
func TestCirclesCanFail(t *testing.T) {
	imports := func(dir string, of ...string) pkg {
		p := pkg{GOOS: "linux", ImportPath: module + "/" + dir}
		for _, to := range of {
			p.Imports = append(p.Imports, module+"/"+to)
		}
		return p
	}
	of := &repo{packages: []pkg{imports("bench/compare", "kernelmodes"), imports("kernelmodes/lab", "lb"),
		imports("lb", "internal/testbed")}}
	if found := checkCircles(of); len(found) != 0 {
		t.Errorf("found %q, want none", found)
	}
	of.packages = append(of.packages, imports("internal/testbed", "bench/load"), imports("lb/balancer", "lb"))
	want := "bench -> kernelmodes -> lb -> internal/testbed -> bench"
	if found := checkCircles(of); !slices.Equal(found, []string{want}) {
		t.Errorf("found %q, want %q", found, want)
	}
}

// folderOf returns the room that a package is in: a wing of the program, a folder of internal, or one at the top.
func folderOf(importPath string) string {
	parts := strings.Split(strings.TrimPrefix(importPath, module+"/"), "/")
	n := 1
	switch {
	case strings.HasPrefix(importPath, module+"/cmd/sluice/internal/"):
		n = 4
	case parts[0] == "internal":
		n = 2
	}
	return strings.Join(parts[:min(n, len(parts))], "/")
}

// checkCircles looks for circles of folders, by the imports of what is no test.
func checkCircles(r *repo) (found []string) {
	to := make(map[string]map[string]bool)
	for _, p := range r.packages {
		from := folderOf(p.ImportPath)
		if to[from] == nil {
			to[from] = make(map[string]bool)
		}
		for _, imp := range p.Imports {
			if below := folderOf(imp); strings.HasPrefix(imp, module+"/") && below != from {
				to[from][below] = true
			}
		}
	}
	over := make(map[string]bool)
	var walk func(way []string)
	walk = func(way []string) {
		at := way[len(way)-1]
		if i := slices.Index(way, at); i < len(way)-1 {
			found = append(found, strings.Join(way[i:], " -> "))
			return
		}
		if over[at] {
			return
		}
		for _, below := range slices.Sorted(maps.Keys(to[at])) {
			walk(append(slices.Clone(way), below))
		}
		over[at] = true
	}
	for _, from := range slices.Sorted(maps.Keys(to)) {
		walk([]string{from})
	}
	return found
}

// madeDeltas returns where a file makes an lb.Change, or says what is in an lb.Delta.
func madeDeltas(f goFile) (at []token.Pos) {
	holds := []string{"Added", "Removed", "Changed"}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			of := n.Type
			if list, ok := of.(*ast.ArrayType); ok {
				of = list.Elt
			}
			filled := slices.ContainsFunc(n.Elts, func(e ast.Expr) bool {
				kv, ok := e.(*ast.KeyValueExpr)
				return ok && slices.Contains(holds, dotted(kv.Key))
			})
			if name := dotted(of); name == "lb.Change" || name == "lb.Delta" && filled {
				at = append(at, n.Pos())
			}
		case *ast.AssignStmt:
			for _, to := range n.Lhs {
				if field, ok := to.(*ast.SelectorExpr); ok && slices.Contains(holds, field.Sel.Name) && dotted(field.X) == "d" {
					at = append(at, to.Pos())
				}
			}
		}
		return true
	})
	return at
}

// checkDeltas looks for code outside lb that says what a delta holds. kernelmodes/lab makes Services of its own.
func checkDeltas(r *repo) (found []string) {
	for _, f := range r.files {
		if f.test() || f.dir() == "lb" || f.dir() == "kernelmodes/lab" {
			continue
		}
		for _, at := range madeDeltas(f) {
			found = append(found, f.at(at, "makes a change of a Service: lb.Delta.Note does"))
		}
	}
	return found
}
