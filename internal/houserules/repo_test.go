package houserules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// module is the import path of this repository.
const module = "github.com/sluice-lb/sluice"

// repo is what the rules look at: a tree of files and what the tools say about it.
type repo struct {
	fsys     fs.FS
	files    []goFile // every Go file, in the order of fs.WalkDir
	packages []pkg    // as go list reports them, once per platform
	help     string   // of "sluice --help"; empty while there is no such program
	explain  string   // of "sluice explain --help"
}

// goFile is one parsed Go file.
type goFile struct {
	path string // from the root, with slashes
	src  []byte
	fset *token.FileSet
	ast  *ast.File
}

// dir is the folder of the file; the root is ".".
func (f goFile) dir() string { return path.Dir(f.path) }

// test reports whether only "go test" compiles the file.
func (f goFile) test() bool { return strings.HasSuffix(f.path, "_test.go") }

// line is the line of p, from 1.
func (f goFile) line(p token.Pos) int { return f.fset.Position(p).Line }

// at words a finding the way compilers do, so that editors can jump to it.
func (f goFile) at(p token.Pos, format string, args ...any) string {
	return fmt.Sprintf("%s:%d: %s", f.path, f.line(p), fmt.Sprintf(format, args...))
}

// imports returns the import paths that the file names.
func (f goFile) imports() []string {
	var paths []string
	for _, s := range f.ast.Imports {
		paths = append(paths, strings.Trim(s.Path.Value, `"`))
	}
	return paths
}

// pkg is one package as "go list -json" describes it, for one platform.
type pkg struct {
	GOOS         string `json:"-"`
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Deps         []string // everything below Imports
}

// newRepo parses every Go file below fsys. Folders that hold no source of ours
// (hidden ones, the build's output, test data) are left out.
func newRepo(fsys fs.FS) (*repo, error) {
	r := &repo{fsys: fsys}
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if p != "." && (strings.HasPrefix(name, ".") || p == "bin" || name == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		src, err := fs.ReadFile(fsys, p)
		if err != nil {
			return err
		}
		f := goFile{path: p, src: src, fset: token.NewFileSet()}
		f.ast, err = parser.ParseFile(f.fset, p, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		r.files = append(r.files, f)
		return nil
	})
	return r, err
}

// text returns a file of the tree, or "" if there is none.
func (r *repo) text(name string) string {
	b, err := fs.ReadFile(r.fsys, name)
	if err != nil {
		return "" // checkDocuments reports the files that must be there
	}
	return string(b)
}

// exists reports whether the tree has the file or folder.
func (r *repo) exists(name string) bool {
	_, err := fs.Stat(r.fsys, name)
	return err == nil
}

// hasGo reports whether the folder itself holds Go code that is not a test.
func (r *repo) hasGo(dir string) bool {
	for _, f := range r.files {
		if f.dir() == dir && !f.test() {
			return true
		}
	}
	return false
}

// root finds the folder of go.mod above the test's working folder.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the working folder")
		}
		dir = up
	}
}

// load reads this repository.
func load(t *testing.T) *repo {
	t.Helper()
	dir := root(t)
	r, err := newRepo(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, goos := range []string{"linux", "windows"} {
		list, err := listPackages(dir, goos)
		if err != nil {
			t.Fatal(err)
		}
		r.packages = append(r.packages, list...)
	}
	if r.hasGo("cmd/sluice") {
		help := func(args ...string) string {
			cmd := exec.Command("go", append([]string{"run", "./cmd/sluice"}, args...)...)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("sluice %s: %v\n%s", args, err, out)
			}
			return string(out)
		}
		r.help, r.explain = help("--help"), help("explain", "--help")
	}
	return r
}

// listPackages asks the go tool what each package of the module imports on goos.
func listPackages(dir, goos string) ([]pkg, error) {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports,Deps", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list for %s: %w: %s", goos, err, stderr.String())
	}
	var list []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		p := pkg{GOOS: goos}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, fmt.Errorf("read go list for %s: %w", goos, err)
		}
		list = append(list, p)
	}
}
