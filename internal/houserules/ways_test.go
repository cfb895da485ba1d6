package houserules

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"strings"
)

// maxChange is how many functions a change of a Service passes from the watch event to
// the kernel.
const maxChange = 25

// ways are what ARCHITECTURE.md and docs/decisions have the functions of.
var ways = []string{"SYN", "datagram", "change", "upgrade"}

var (
	wayHeading = regexp.MustCompile(`^#+ (?:The )?[Ww]ay of (?:a|an|one)\b(.*)$`)
	wayStep    = regexp.MustCompile("^ *(?:-|\\d+\\.) `([\\w./-]+\\.go): ([\\w.]+)(?:\\(\\))?`((?:, `[\\w.]+`)*)")
)

func wayRules() []rule {
	list := "# Way of a SYN\n- `tcp/a.go: f`, `T.m` do\n# The way of a datagram\n1. `tcp/a.go: f`\n" +
		"# Way of one Service change\n- `tcp/a.go: f`\n"
	page := "# Way of an upgrade\n- `tcp/a.go: f`\n"
	code := "package tcp\n\nfunc f() {}\n\ntype T[K any] struct{}\n\nfunc (*T[K]) m() {}\n"
	wrong := strings.ReplaceAll(list, "T.m", "T.n") + strings.Repeat("- `tcp/a.go: f`\n", maxChange)
	return []rule{{
		name: "the ways through the code exist", check: checkWays,
		why:    "a newcomer follows them, function by function",
		broken: tree{"ARCHITECTURE.md": wrong, "tcp/a.go": code},
		want:   "ARCHITECTURE.md:2: tcp/a.go declares no T.n\n26 functions\nno way of a upgrade",
		fine:   tree{"ARCHITECTURE.md": list, "docs/decisions/1.md": page, "tcp/a.go": code},
	}}
}

// checkWays compares the steps under each heading of a way with the code.
func checkWays(r *repo) []string {
	var found []string
	declared := r.declared()
	steps := map[string]int{} // functions of each way
	for _, doc := range r.documents() {
		if doc == "ARCHITECTURE.md" || path.Dir(doc) == "docs/decisions" {
			found = append(found, checkSteps(doc, r.text(doc), declared, steps)...)
		}
	}
	for _, name := range ways {
		n := 0
		for way, count := range steps {
			if strings.Contains(way, name) {
				n += count
			}
		}
		switch {
		case n == 0:
			found = append(found, "ARCHITECTURE.md: no way of a "+name+" with its functions")
		case name == "change" && n > maxChange:
			found = append(found, fmt.Sprintf("ARCHITECTURE.md: the way of a change has %d functions, the limit is %d",
				n, maxChange))
		}
	}
	return found
}

// checkSteps counts the functions of each way in a document, and returns those that the code does not declare.
func checkSteps(doc, text string, declared map[string]bool, steps map[string]int) (found []string) {
	way := ""
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "#") {
			way = ""
			if m := wayHeading.FindStringSubmatch(line); m != nil {
				way = m[1]
			}
		}
		m := wayStep.FindStringSubmatch(line)
		if way == "" || m == nil {
			continue
		}
		for _, function := range strings.Split(m[2]+m[3], ", ") {
			steps[way]++
			if function = strings.Trim(function, "`"); !declared[m[1]+": "+function] {
				found = append(found, fmt.Sprintf("%s:%d: %s declares no %s", doc, i+1, m[1], function))
			}
		}
	}
	return found
}

// declared returns every function as "path/file.go: Func" or "path/file.go: Type.Method".
func (r *repo) declared() map[string]bool {
	all := map[string]bool{}
	for _, f := range r.files {
		for _, d := range f.ast.Decls {
			if d, ok := d.(*ast.FuncDecl); ok {
				all[f.path+": "+receiver(d)+d.Name.Name] = true
			}
		}
	}
	return all
}

// receiver returns the type of a method with a dot, "" for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	for t := d.Recv.List[0].Type; ; {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name + "."
		default:
			return "?."
		}
	}
}
