package houserules

import (
	"fmt"
	"go/ast"
	"regexp"
	"strings"
)

// maxChange is how many functions a change of a Service passes from the watch event to
// the kernel.
const maxChange = 25

// ways are what ARCHITECTURE.md has the functions of.
var ways = []string{"SYN", "datagram", "change", "upgrade"}

var (
	wayHeading = regexp.MustCompile(`^#+ (?:The )?[Ww]ay of (?:a|an|one)\b(.*)$`)
	wayStep    = regexp.MustCompile("^ *(?:-|\\d+\\.) `([\\w./-]+\\.go): ([\\w.]+)(?:\\(\\))?`")
)

func wayRules() []rule {
	list := "# Way of a SYN\n- `tcp/a.go: T.m` does\n# The way of a datagram\n1. `tcp/a.go: f`\n" +
		"# Way of an upgrade\n- `tcp/a.go: f`\n# Way of one Service change\n- `tcp/a.go: f`\n"
	code := "package tcp\n\nfunc f() {}\n\ntype T[K any] struct{}\n\nfunc (*T[K]) m() {}\n"
	wrong := strings.NewReplacer("T.m", "T.n", "of an upgrade", "down").Replace(list) + strings.Repeat("- `tcp/a.go: f`\n", maxChange)
	return []rule{{
		name: "the ways in ARCHITECTURE.md exist", check: checkWays,
		why:    "a newcomer follows them, function by function",
		broken: tree{"ARCHITECTURE.md": wrong, "tcp/a.go": code},
		want:   "ARCHITECTURE.md:2: tcp/a.go declares no T.n\n26 functions\nno way of a upgrade",
		fine:   tree{"ARCHITECTURE.md": list, "tcp/a.go": code},
	}}
}

// checkWays compares the steps under each heading of a way with the code.
func checkWays(r *repo) []string {
	var found []string
	declared := r.declared()
	steps, way := map[string]int{}, ""
	for i, line := range strings.Split(r.text("ARCHITECTURE.md"), "\n") {
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
		steps[way]++
		if !declared[m[1]+": "+m[2]] {
			found = append(found, fmt.Sprintf("ARCHITECTURE.md:%d: %s declares no %s", i+1, m[1], m[2]))
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
			found = append(found, fmt.Sprintf("ARCHITECTURE.md: the way of a change has %d functions, the limit is %d", n, maxChange))
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
