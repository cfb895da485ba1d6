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
	"strings"
	"sync"
	"testing"
)

// module is the import path of this repository, root its folder.
const (
	module = "github.com/sluice-lb/sluice"
	root   = "../.."
)

// repo is what the rules look at: a tree of files and what the tools say about it.
type repo struct {
	fsys     fs.FS
	files    []goFile // every Go file, in the order of fs.WalkDir
	packages []pkg    // as go list reports them, once per platform
	help     string   // of "sluice --help"; empty: every flag is known
}

// goFile is one parsed Go file.
type goFile struct {
	path string // from the root, with slashes
	src  string
	fset *token.FileSet
	ast  *ast.File
}

func (f goFile) dir() string { return path.Dir(f.path) }

// test reports whether only "go test" compiles the file.
func (f goFile) test() bool { return strings.HasSuffix(f.path, "_test.go") }

func (f goFile) line(p token.Pos) int { return f.fset.Position(p).Line }

// at words a finding the way compilers do, so that editors can jump to it.
func (f goFile) at(p token.Pos, format string, args ...any) string {
	return fmt.Sprintf("%s:%d: %s", f.path, f.line(p), fmt.Sprintf(format, args...))
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

// newRepo parses every Go file below fsys, without hidden folders, the build's output and
// test data.
func newRepo(fsys fs.FS) (*repo, error) {
	r := &repo{fsys: fsys}
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != "." && (d.Name()[0] == '.' || p == "bin" || p == "dist" || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if d.IsDir() || path.Ext(p) != ".go" {
			return nil
		}
		f := goFile{path: p, src: r.text(p), fset: token.NewFileSet()}
		f.ast, err = parser.ParseFile(f.fset, p, f.src, parser.ParseComments|parser.SkipObjectResolution)
		r.files = append(r.files, f)
		return err
	})
	return r, err
}

// text returns a file of the tree, or "" if there is none.
func (r *repo) text(name string) string {
	b, _ := fs.ReadFile(r.fsys, name) // checkDocuments reports the files that must be there
	return string(b)
}

// exists reports whether the tree has the file or folder.
func (r *repo) exists(name string) bool {
	_, err := fs.Stat(r.fsys, name)
	return err == nil
}

// load reads this repository.
func load(t *testing.T) *repo {
	t.Helper()
	r, err := loadOnce()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// loadOnce does so for all tests, which change nothing of it: to list all packages and to link the
// program takes longer than to look at them.
var loadOnce = sync.OnceValues(func() (*repo, error) {
	r, err := newRepo(os.DirFS(root))
	if err != nil {
		return nil, err
	}
	for _, goos := range []string{"linux", "windows"} {
		for _, dir := range []string{root, root + "/bench"} {
			list, err := listPackages(dir, goos)
			if err != nil {
				return nil, err
			}
			r.packages = append(r.packages, list...)
		}
	}
	cmd := exec.Command("go", "run", "./cmd/sluice", "--help")
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("sluice --help: %w\n%s", err, out)
	}
	r.help = string(out)
	return r, nil
})

// listPackages asks the go tool what each package of the module in dir imports on goos.
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
