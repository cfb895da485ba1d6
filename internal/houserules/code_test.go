package houserules

import (
	"fmt"
	"go/ast"
	"go/build/constraint"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// maxDoc is how many lines a package comment may have: one screen.
const maxDoc = 46

// folders are the top-level ones. bin and dist are where builds land; they are not committed.
var folders = strings.Fields(
	"affinity bench bin cmd deploy dist docs internal kernelmodes lb redirect sctp tcp udp .ci .git .github")

func codeRules() []rule {
	sleep := "package x\n\nfunc f() {\n\ttime.Sleep(1)\n}\n"
	explained := strings.Replace(sleep, "\ttime.", "\t// No event reports the end of a neighbour entry.\n\ttime.", 1)
	return []rule{
		{
			name: "package comments are in doc.go, on one screen", check: checkPackageComments,
			why: "a reader looks for what a package promises in one place, and reads it whole",
			broken: tree{
				"lb/doc.go": strings.Repeat("// x\n", maxDoc+1) + "package lb\n",
				"lb/lb.go":  "// Package lb chooses.\npackage lb\n",
			},
			want: "lb/doc.go:1: the package comment has 47 lines\nlb/lb.go:1: the package comment belongs into doc.go",
			fine: tree{"cmd/x/main.go": "// Command x runs.\npackage main\n", "lb/doc.go": "// Package lb.\npackage lb\n"},
		},
		{
			name: "pure packages start no goroutine", check: checkGoroutines,
			why:    "lb and affinity must give the same answers to the same calls",
			broken: tree{"lb/a.go": "package lb\n\nfunc f() {\n\tgo f()\n}\n"}, want: "lb/a.go:4",
			fine: tree{"tcp/a.go": "package tcp\n\nfunc f() {\n\tgo f()\n}\n"},
		},
		{
			name: "nobody assigns what the agent was given", check: checkAgent,
			why: "agent.New is given everything: what is assigned later has an order that only its lines say",
			broken: tree{
				agentDir + "/a.go": "package agent\n\ntype Config struct{ Log, Observe func() }\n\n" +
					"type Agent struct{ Config }\n",
				"cmd/x/a.go":      "package x\n\nfunc f() {\n\td.agent.Log, d.agent.Other = nil, nil\n}\n",
				"cmd/x/b_test.go": "package x\n\nfunc f() {\n\ta := agent.New(c)\n\ta.Observe.by[0] = nil\n}\n",
			},
			want: "cmd/x/a.go:4: Log is\ncmd/x/b_test.go:5: Observe is",
			fine: tree{
				agentDir + "/a.go": "package agent\n\ntype Config struct{ Log func() }\n\n" +
					"func f() {\n\tagent.Log = nil\n}\n",
				"cmd/x/a.go": "package x\n\nfunc f() {\n\td.Log, log, d.agent = nil, d.agent.Log, agent.New(c)\n}\n",
			},
		},
		{
			name: "only lb computes a delta", check: checkDeltas,
			why: "what has changed is found in one place, and all others are passed it",
			broken: tree{"redirect/a.go": "package redirect\n\nfunc f() {\n\tc := lb.Change{New: s}\n" +
				"\td.Added = append(d.Added, s)\n\td := lb.Delta{Removed: l}\n}\n"},
			want: "redirect/a.go:4: makes\nredirect/a.go:5: makes\nredirect/a.go:6: makes",
			fine: tree{
				"lb/a.go":       "package lb\n\nfunc f() {\n\td.Added = append(d.Added, s)\n}\n",
				"redirect/a.go": "package redirect\n\nfunc f() {\n\td := lb.Delta{Whole: true}\n\td.Note(nil, s)\n\tl := d.Added\n}\n",
			},
		},
		{
			name: "platform code has a platform's file name", check: checkPlatforms,
			why: "the list of files then says what runs where, and no build tag selects code that tests never see",
			broken: tree{
				"tcp/a.go":            "package tcp\n\nimport _ \"golang.org/x/sys/unix\"\n",
				"tcp/a_amd64_test.go": "package tcp\n",
				"tcp/a_linux.go":      "package tcp\n\nimport _ \"golang.org/x/sys/windows\"\n",
				"tcp/a_other.go":      "//go:build !race\n\npackage tcp\n",
				"tcp/b.go":            "//go:build linux\n\npackage tcp\n",
				"tcp/b_other.go":      "package tcp\n",
			},
			want: "a _linux.go file\n_amd64\na _windows.go file\nnames race\nonly _other.go files\nbuilt everywhere",
			fine: tree{
				"tcp/a_linux_test.go": "package tcp\n\nimport _ \"golang.org/x/sys/unix\"\n",
				"tcp/a_other.go":      "//go:build !linux && !windows\n\npackage tcp\n",
				"tcp/dial_once.go":    "package tcp\n\n// Say //go:build in a comment.\n",
			},
		},
		{
			name: "nothing sleeps", check: checkSleeps,
			why:    "a sleep is too long on one machine and too short on another; wait for an event, or say why there is none",
			broken: tree{"tcp/a.go": explained, "tcp/a_test.go": sleep},
			want:   "tcp/a.go:5: Sleep outside tests\ntcp/a_test.go:4: Sleep without",
			fine:   tree{"tcp/a_test.go": explained, "internal/testbed/a.go": explained},
		},
		{
			name: "top-level folders are fixed", check: checkFolders,
			why:    "a folder for what fits nowhere (util, common, types, pkg) hides a missing package",
			broken: tree{"util/a.txt": "", "main.go": "package main\n"}, want: "main.go: \nutil: ",
			fine: tree{"lb/a.txt": "", "README.md": ""},
		},
		{
			name: "go.mod and tools are plain", check: checkPins,
			why: "a replace, a commit instead of a release or @latest hides from users what they build",
			broken: tree{
				"go.mod":   "module x\nreplace a.com/b => ../b\nrequire a.com/b v0.0.0-20200101000000-abcdef012345\n",
				"Makefile": "TOOL := a.com/b@master\n",
			},
			want: "go.mod:2\nnot a release\n@master",
			fine: tree{"Makefile": "TOOL := a.com/b@v1.2.3\n", "go.mod": "require (\n\ta.com/b v1.2.3\n\ta.com/c v0.0.0-20200101000000-abcdef012345 // indirect\n)\n"},
		},
	}
}

func checkPackageComments(r *repo) []string {
	var found []string
	for _, f := range r.files {
		lines := strings.Count(f.ast.Doc.Text(), "\n")
		switch {
		case lines == 0 || f.test():
		case f.ast.Name.Name != "main" && path.Base(f.path) != "doc.go":
			found = append(found, f.at(f.ast.Doc.Pos(), "the package comment belongs into doc.go"))
		case lines > maxDoc:
			found = append(found, f.at(f.ast.Doc.Pos(), "the package comment has %d lines, the limit is %d", lines, maxDoc))
		}
	}
	return found
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

// agentDir is where the agent is.
const agentDir = "cmd/sluice/internal/control/agent"

// checkAgent looks for assignments to fields of agent.Config, at what is called agent or has been made by agent.New.
func checkAgent(r *repo) (found []string) {
	fields := make(map[string]bool)
	for _, f := range r.files {
		if s := structOf(f, "Config"); s != nil && f.dir() == agentDir {
			for _, field := range s.Fields.List {
				for _, name := range field.Names {
					fields[name.Name] = true
				}
			}
		}
	}
	for _, f := range r.files {
		if f.dir() == agentDir {
			continue
		}
		agents := map[string]bool{"agent": true, "Agent": true}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			set, _ := n.(*ast.AssignStmt)
			if set == nil {
				return true
			}
			for i, to := range set.Lhs {
				if call, ok := set.Rhs[min(i, len(set.Rhs)-1)].(*ast.CallExpr); ok && dotted(call.Fun) == "agent.New" {
					agents[path.Ext("." + dotted(to))[1:]] = true
				}
				ast.Inspect(to, func(n ast.Node) bool {
					of, ok := n.(*ast.SelectorExpr)
					if ok && fields[of.Sel.Name] && agents[path.Ext("." + dotted(of.X))[1:]] {
						found = append(found, f.at(of.Pos(), "%s is given to agent.New", of.Sel.Name))
					}
					return true
				})
			}
			return true
		})
	}
	return found
}

// structOf returns the type of a name that a file declares, if it is a struct.
func structOf(f goFile, name string) (s *ast.StructType) {
	for _, d := range f.ast.Decls {
		types, _ := d.(*ast.GenDecl)
		if types == nil {
			continue
		}
		for _, spec := range types.Specs {
			if t, ok := spec.(*ast.TypeSpec); ok && t.Name.Name == name {
				s, _ = t.Type.(*ast.StructType)
			}
		}
	}
	return s
}

// dotted is an expression of names with dots between them; what else it is made of is left out.
func dotted(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return dotted(e.X) + "." + e.Sel.Name
	}
	return ""
}

// otherPlatforms are endings of file names that the go tool takes for a platform that has
// no files of its own here.
var otherPlatforms = strings.Fields("darwin freebsd netbsd openbsd unix 386 amd64 arm arm64 wasm")

// checkPlatforms holds platform code to files named _linux, _windows and _other, of which only
// the last have a build constraint.
func checkPlatforms(r *repo) []string {
	var found []string
	for _, f := range r.files {
		stem := strings.TrimSuffix(strings.TrimSuffix(path.Base(f.path), ".go"), "_test")
		suffix := stem[strings.LastIndex(stem, "_")+1:]
		if slices.Contains(otherPlatforms, suffix) && suffix != stem {
			found = append(found, fmt.Sprintf("%s: no file is named for _%s, only for _linux, _windows and _other", f.path, suffix))
		}
		for _, s := range f.ast.Imports {
			for pkg, goos := range map[string]string{"unix": "linux", "windows": "windows"} {
				if strings.HasPrefix(s.Path.Value, `"golang.org/x/sys/`+pkg) && suffix != goos {
					found = append(found, f.at(s.Pos(), "%s belongs into a _%s.go file", s.Path.Value, goos))
				}
			}
		}
		head, _, _ := strings.Cut(f.src, "\npackage ")
		for line := range strings.Lines(head) {
			x, err := constraint.Parse(strings.TrimSpace(line))
			if err != nil {
				continue
			}
			if suffix != "other" {
				found = append(found, f.path+": only _other.go files have a build constraint")
			}
			suffix = ""
			x.Eval(func(tag string) bool {
				if tag != "linux" && tag != "windows" {
					found = append(found, fmt.Sprintf("%s: the build constraint names %s", f.path, tag))
				}
				return false
			})
		}
		if suffix == "other" {
			found = append(found, f.path+": without a build constraint it is built everywhere")
		}
	}
	return found
}

// checkSleeps forbids sleeping outside of tests and what they stand on, and wants a comment at or above it there.
func checkSleeps(r *repo) []string {
	var found []string
	for _, f := range r.files {
		commented := map[int]bool{}
		for _, group := range f.ast.Comments {
			for l := f.line(group.Pos()); l <= f.line(group.End()); l++ {
				commented[l] = true
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok || s.Sel.Name != "Sleep" {
				return true
			}
			line := f.line(s.Pos())
			if x, ok := s.X.(*ast.Ident); !ok || x.Name != "time" {
				return true
			} else if !f.test() && !under(f.dir(), []string{"bench", "internal/testbed", "cmd/sluice/internal/e2e"}) {
				found = append(found, f.at(s.Pos(), "Sleep outside tests"))
			} else if !commented[line] && !commented[line-1] {
				found = append(found, f.at(s.Pos(), "Sleep without a comment that says why no event can be awaited"))
			}
			return true
		})
	}
	return found
}

func checkFolders(r *repo) []string {
	entries, err := fs.ReadDir(r.fsys, ".")
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	for _, e := range entries {
		if e.IsDir() && !slices.Contains(folders, e.Name()) || path.Ext(e.Name()) == ".go" {
			found = append(found, e.Name()+": not a folder of this repository; put code where its subject is")
		}
	}
	return found
}

var (
	modDirective  = regexp.MustCompile(`^(replace|exclude|retract|toolchain)\b`)
	pseudoVersion = regexp.MustCompile(` v\S*[-.]\d{14}-[0-9a-f]{12}$`)
	modulePin     = regexp.MustCompile(`[\w.-]+\.[a-z]+/[\w./-]+@(\S+)`)
	exactVersion  = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[\w.-]+)?$`) // or a commit of what is never released
)

func checkPins(r *repo) []string {
	var found []string
	for i, line := range strings.Split(r.text("go.mod"), "\n") {
		if modDirective.MatchString(line) || pseudoVersion.MatchString(line) {
			found = append(found, fmt.Sprintf("go.mod:%d: a directive, or not a release: %s", i+1, line))
		}
	}
	for _, m := range modulePin.FindAllStringSubmatch(r.text("Makefile"), -1) {
		if !exactVersion.MatchString(m[1]) {
			found = append(found, fmt.Sprintf("Makefile: @%s is not one exact version", m[1]))
		}
	}
	return found
}
