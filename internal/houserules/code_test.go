package houserules

import (
	"fmt"
	"go/ast"
	"go/build/constraint"
	"path"
	"slices"
	"strings"
)

// The limits on length, in lines. A long test is a list of cases more often than
// a tangle, so tests may be longer.
const (
	maxFile, maxTestFile         = 500, 800
	maxFunction, maxTestFunction = 80, 120
)

// allowLong starts the comment that lifts a length limit; a reason follows.
const allowLong = "//house:allow-long"

func codeRules() []rule {
	const doc = "// Package lb chooses.\npackage lb\n"
	longFunc := "package lb\n\nfunc f() {\n" + strings.Repeat("\tg()\n", maxFunction) + "}\n"
	longFile := "package lb\n" + strings.Repeat("\n", maxFile)
	return []rule{
		{
			name: "one package comment per folder", check: checkPackageComments,
			why: "a reader looks for the guarantees of a package in one place, doc.go",
			broken: []example{
				{files: map[string]string{"lb/lb.go": "package lb\n"}, want: []string{"lb: no package comment"}},
				{files: map[string]string{"lb/doc.go": doc, "lb/more.go": doc}, want: []string{"lb: 2 package comments"}},
				{files: map[string]string{"lb/lb.go": doc}, want: []string{"lb/lb.go:1: the package comment belongs into doc.go"}},
				{files: map[string]string{"lb/doc.go": "// It chooses.\npackage lb\n"}, want: []string{`does not begin with "Package lb"`}},
			},
			fine: []example{
				{files: map[string]string{"lb/doc.go": doc, "lb/lb.go": "package lb\n"}},
				{files: map[string]string{"cmd/x/main.go": "// Command x runs.\npackage main\n"}},
			},
		},
		{
			name: "everything exported is documented", check: checkDocs,
			why: "a name that others call promises something, and the promise must be written down",
			broken: []example{
				{files: map[string]string{"lb/a.go": "package lb\n\nfunc Pick() {}\n\ntype T struct{}\n\nfunc (T) M() {}\n\nconst C = 1\n"}, want: []string{"a.go:3: Pick", "T has", "M has", "C has"}},
				{files: map[string]string{"lb/a.go": "package lb\n\n// I is.\ntype I interface {\n\tM()\n\tN() // does\n}\n"}, want: []string{"a.go:5: M"}},
			},
			fine: []example{{files: map[string]string{
				"lb/a.go":      "package lb\n\n// A set.\nconst (\n\tA = 1\n\tB = 2\n)\n\ntype t struct{}\n\nfunc (t) M() {}\n\n// R reads.\ntype R interface {\n\tRead()\n}\n",
				"lb/a_test.go": "package lb\n\nfunc TestA() {}\n",
			}}},
		},
		{
			name: "files and functions are short", check: checkLengths,
			why: "averages do not separate good code from bad, the longest function does",
			broken: []example{
				{files: map[string]string{"lb/a.go": longFunc}, want: []string{"a.go:3: f has 82 lines"}},
				{files: map[string]string{"lb/a.go": longFile}, want: []string{"a.go:1: the file has 501 lines"}},
				{files: map[string]string{"lb/a.go": "//house:allow-long\n\n" + longFile}, want: []string{"without a reason"}},
				{files: map[string]string{"lb/a.go": "//house:allow-long it was long once\n\npackage lb\n"}, want: []string{"is not long"}},
				{files: map[string]string{"lb/a.go": "package lb\n\nfunc f() {\n\t//house:allow-long in the wrong place\n}\n"}, want: []string{"a.go:4: allow-long"}},
			},
			fine: []example{
				{files: map[string]string{"lb/a_test.go": longFunc, "lb/b_test.go": longFile}},
				{files: map[string]string{"lb/a.go": strings.Replace(longFunc, "func", "//house:allow-long one case per state\nfunc", 1)}},
				{files: map[string]string{"lb/a.go": "//house:allow-long a table of the kernel's numbers\n\n" + longFile}},
			},
		},
		{
			name: "pure rooms start no goroutine", check: checkGoroutines,
			why: "what starts goroutines has a hidden order, and lb and affinity must give the same answers to the same calls",
			broken: []example{
				{files: map[string]string{"lb/a.go": "package lb\n\nfunc f() {\n\tgo f()\n}\n"}, want: []string{"lb/a.go:4"}},
				{files: map[string]string{"affinity/x/a.go": "package x\n\nfunc f() {\n\tgo f()\n}\n"}, want: []string{"affinity/x/a.go:4"}},
			},
			fine: []example{{files: map[string]string{"lb/a_test.go": "package lb\n\nfunc f() {\n\tgo f()\n}\n", "tcp/a.go": "package tcp\n\nfunc f() {\n\tgo f()\n}\n"}}},
		},
		{
			name: "platform code has a platform's file name", check: checkPlatforms,
			why: "the list of files then tells what runs where, and no build tag can select code that the tests never see",
			broken: []example{
				{files: map[string]string{"tcp/a.go": "package tcp\n\nimport _ \"golang.org/x/sys/unix\"\n"}, want: []string{"belongs into a _linux.go file"}},
				{files: map[string]string{"tcp/a_linux.go": "package tcp\n\nimport _ \"golang.org/x/sys/windows\"\n"}, want: []string{"belongs into a _windows.go file"}},
				{files: map[string]string{"tcp/a.go": "//go:build linux\n\npackage tcp\n"}, want: []string{"only _other.go files"}},
				{files: map[string]string{"tcp/a_other.go": "//go:build !race\n\npackage tcp\n"}, want: []string{"tag race"}},
				{files: map[string]string{"tcp/a_other.go": "package tcp\n"}, want: []string{"built everywhere"}},
				{files: map[string]string{"tcp/a_linux.go": "// +build linux\n\npackage tcp\n"}, want: []string{"+build"}},
				{files: map[string]string{"tcp/a_darwin.go": "package tcp\n"}, want: []string{"_darwin"}},
				{files: map[string]string{"tcp/a_amd64_test.go": "package tcp\n"}, want: []string{"_amd64"}},
			},
			fine: []example{{files: map[string]string{
				"tcp/a_linux.go":      "package tcp\n\nimport _ \"golang.org/x/sys/unix\"\n",
				"tcp/a_linux_test.go": "package tcp\n\nimport _ \"golang.org/x/sys/unix\"\n",
				"tcp/a_other.go":      "//go:build !linux && !windows\n\npackage tcp\n",
				"tcp/dial_once.go":    "package tcp\n\n// Say //go:build and +build in a comment.\n",
			}}},
		},
	}
}

// checkPackageComments wants one package comment per folder with code: in doc.go,
// or in main.go where the package is a program.
func checkPackageComments(r *repo) []string {
	dirs := map[string][]goFile{} // folder to the files with a package comment
	var order []string
	for _, f := range r.files {
		if f.test() {
			continue
		}
		if _, ok := dirs[f.dir()]; !ok {
			order = append(order, f.dir())
			dirs[f.dir()] = nil
		}
		if f.ast.Doc.Text() != "" {
			dirs[f.dir()] = append(dirs[f.dir()], f)
		}
	}
	var found []string
	for _, dir := range order {
		files := dirs[dir]
		if len(files) == 0 {
			found = append(found, dir+": no package comment in any file; write doc.go")
			continue
		}
		if len(files) > 1 {
			found = append(found, fmt.Sprintf("%s: %d package comments, want one: %s and %s", dir, len(files), files[0].path, files[1].path))
			continue
		}
		f, name, begin := files[0], path.Base(files[0].path), "Package "+files[0].ast.Name.Name
		if main := f.ast.Name.Name == "main"; main {
			begin = "Command " + path.Base(dir)
		} else if name != "doc.go" {
			found = append(found, f.at(f.ast.Doc.Pos(), "the package comment belongs into doc.go"))
		}
		if !strings.HasPrefix(f.ast.Doc.Text(), begin+" ") {
			found = append(found, f.at(f.ast.Doc.Pos(), "the package comment does not begin with %q", begin))
		}
	}
	return found
}

// checkDocs wants a comment at every exported name outside tests. In a group of
// constants or variables the comment of the group is enough.
func checkDocs(r *repo) []string {
	var found []string
	for _, f := range r.files {
		if f.test() {
			continue
		}
		want := func(n *ast.Ident, docs ...*ast.CommentGroup) {
			if n.IsExported() && !slices.ContainsFunc(docs, func(c *ast.CommentGroup) bool { return c.Text() != "" }) {
				found = append(found, f.at(n.Pos(), "%s has no doc comment", n.Name))
			}
		}
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if exportedReceiver(d) {
					want(d.Name, d.Doc)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					wantSpec(s, d.Doc, want)
				}
			}
		}
	}
	return found
}

// wantSpec asks for the comments of one line of a declaration whose own comment
// is group.
func wantSpec(s ast.Spec, group *ast.CommentGroup, want func(*ast.Ident, ...*ast.CommentGroup)) {
	switch s := s.(type) {
	case *ast.ValueSpec:
		for _, n := range s.Names {
			want(n, s.Doc, s.Comment, group)
		}
	case *ast.TypeSpec:
		want(s.Name, s.Doc, group)
		// With one method, the comment of the type can say it all, as io.Reader's does.
		if i, ok := s.Type.(*ast.InterfaceType); ok && s.Name.IsExported() && len(i.Methods.List) > 1 {
			for _, m := range i.Methods.List {
				for _, n := range m.Names {
					want(n, m.Doc, m.Comment)
				}
			}
		}
	}
}

// exportedReceiver reports whether others can reach the function: a method of an
// unexported type is not theirs to call.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return true
		}
	}
}

// checkLengths holds files and functions to the limits above, and the exceptions
// to having a reason and being needed.
func checkLengths(r *repo) []string {
	var found []string
	for _, f := range r.files {
		fileLimit, funcLimit := maxFile, maxFunction
		if f.test() {
			fileLimit, funcLimit = maxTestFile, maxTestFunction
		}
		used := map[*ast.Comment]bool{}
		judge := func(at ast.Node, what string, lines, limit int, exception *ast.Comment) {
			switch used[exception] = true; {
			case exception == nil && lines > limit:
				found = append(found, f.at(at.Pos(), "%s has %d lines, the limit is %d", what, lines, limit))
			case exception != nil && strings.TrimSpace(strings.TrimPrefix(exception.Text, allowLong)) == "":
				found = append(found, f.at(exception.Pos(), "allow-long without a reason"))
			case exception != nil && lines <= limit:
				found = append(found, f.at(exception.Pos(), "allow-long, but %s is not long", what))
			}
		}
		var head []*ast.CommentGroup
		for _, c := range f.ast.Comments {
			if c.End() < f.ast.Package {
				head = append(head, c)
			}
		}
		judge(f.ast, "the file", strings.Count(string(f.src), "\n"), fileLimit, exceptionIn(head...))
		for _, d := range f.ast.Decls {
			if d, ok := d.(*ast.FuncDecl); ok {
				lines := f.line(d.End()) - f.line(d.Pos()) + 1
				judge(d, d.Name.Name, lines, funcLimit, exceptionIn(d.Doc))
			}
		}
		for _, c := range f.ast.Comments {
			if e := exceptionIn(c); e != nil && !used[e] {
				found = append(found, f.at(e.Pos(), "allow-long stands above neither a function nor the package clause"))
			}
		}
	}
	return found
}

// exceptionIn finds the comment that lifts a length limit, or nil.
func exceptionIn(groups ...*ast.CommentGroup) *ast.Comment {
	for _, g := range groups {
		if g == nil {
			continue
		}
		for _, c := range g.List {
			if strings.HasPrefix(c.Text, allowLong) {
				return c
			}
		}
	}
	return nil
}

func checkGoroutines(r *repo) []string {
	var found []string
	for _, f := range r.files {
		if f.test() || !under(f.dir(), []string{"lb", "affinity"}) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if g, ok := n.(*ast.GoStmt); ok {
				found = append(found, f.at(g.Pos(), "starts a goroutine"))
			}
			return true
		})
	}
	return found
}

// platforms are the endings of file names that the go tool takes for a platform.
var platforms = strings.Fields(`aix android darwin dragonfly freebsd illumos ios js linux netbsd openbsd plan9 solaris
	wasip1 windows 386 amd64 arm arm64 loong64 mips mips64 mips64le mipsle ppc64 ppc64le riscv64 s390x wasm unix other`)

// checkPlatforms holds platform code to files named _linux, _windows and _other.
func checkPlatforms(r *repo) []string {
	var found []string
	for _, f := range r.files {
		stem := strings.TrimSuffix(strings.TrimSuffix(path.Base(f.path), ".go"), "_test")
		suffix := ""
		if i := strings.LastIndex(stem, "_"); i >= 0 && slices.Contains(platforms, stem[i+1:]) {
			suffix = stem[i+1:]
		}
		if suffix != "" && suffix != "linux" && suffix != "windows" && suffix != "other" {
			found = append(found, fmt.Sprintf("%s: no file is named for _%s, only for _linux, _windows and _other", f.path, suffix))
		}
		for _, imp := range f.imports() {
			for pkg, goos := range map[string]string{"golang.org/x/sys/unix": "linux", "golang.org/x/sys/windows": "windows"} {
				if under(imp, []string{pkg}) && suffix != goos {
					found = append(found, fmt.Sprintf("%s: %s belongs into a _%s.go file", f.path, imp, goos))
				}
			}
		}
		found = append(found, checkConstraint(f, suffix == "other")...)
	}
	return found
}

// checkConstraint wants a build constraint in _other files, where no file name
// can say it, and in no others.
func checkConstraint(f goFile, other bool) []string {
	var found []string
	seen := false
	for _, group := range f.ast.Comments {
		for _, c := range group.List {
			if c.Pos() > f.ast.Package {
				continue
			}
			if constraint.IsPlusBuild(c.Text) {
				found = append(found, f.at(c.Pos(), "+build is the old form of a constraint"))
			}
			if !constraint.IsGoBuild(c.Text) {
				continue
			}
			seen = true
			if !other {
				found = append(found, f.at(c.Pos(), "only _other.go files have a build constraint"))
			}
			x, err := constraint.Parse(c.Text)
			if err != nil {
				found = append(found, f.at(c.Pos(), "%v", err))
				continue
			}
			x.Eval(func(tag string) bool {
				if tag != "linux" && tag != "windows" {
					found = append(found, f.at(c.Pos(), "tag %s: a constraint names linux and windows only", tag))
				}
				return false
			})
		}
	}
	if other && !seen {
		found = append(found, f.path+": without a build constraint it is built everywhere")
	}
	return found
}
