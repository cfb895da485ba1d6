package reference

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"reflect"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
)

const module = "github.com/sluice-lb/sluice/"

// object is a type of the API with the fields of its JSON.
type object struct {
	Name   string
	Fields []field
}

type field struct{ Name, Type, Means string }

// reader collects the types of answers, each once, in the order of their first use.
type reader struct {
	fsys  fs.FS
	means map[string]map[string]string // comments by package, and there by "Type.Field"
	seen  map[reflect.Type]bool
	all   []object
}

// objects returns the types of all answers. The comments in the source say what their fields mean.
func objects(fsys fs.FS) ([]object, error) {
	r := &reader{fsys, make(map[string]map[string]string), make(map[reflect.Type]bool), nil}
	for _, route := range api.Resources() {
		if err := r.read(reflect.TypeOf(route.Answer)); err != nil {
			return nil, err
		}
	}
	return r.all, nil
}

// read adds a type, and those of its fields.
func (r *reader) read(t reflect.Type) error {
	if t = element(t); t.Kind() != reflect.Struct || t == reflect.TypeFor[time.Time]() || r.seen[t] {
		return nil
	}
	r.seen[t] = true
	at := len(r.all)
	r.all = append(r.all, object{Name: t.Name()})
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			continue
		}
		declares := t
		for _, i := range f.Index[:len(f.Index)-1] {
			declares = declares.Field(i).Type // embedded
		}
		means, err := r.comment(declares, f.Name)
		if err != nil {
			return err
		}
		r.all[at].Fields = append(r.all[at].Fields, field{name, typeOf(f.Type), means})
		if err := r.read(f.Type); err != nil {
			return err
		}
	}
	return nil
}

// comment returns the comment of a field, in one line.
func (r *reader) comment(t reflect.Type, name string) (string, error) {
	pkg := strings.TrimPrefix(t.PkgPath(), module)
	if r.means[pkg] == nil {
		r.means[pkg] = make(map[string]string)
		if err := r.parse(pkg); err != nil {
			return "", fmt.Errorf("read comments of %s: %w", pkg, err)
		}
	}
	of, _, _ := strings.Cut(t.Name(), "[")
	return r.means[pkg][of+"."+name], nil
}

func (r *reader) parse(pkg string) error {
	files, err := fs.Glob(r.fsys, path.Join(pkg, "*.go"))
	if err != nil {
		return err
	}
	for _, name := range files {
		src, err := fs.ReadFile(r.fsys, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, f := range s.Fields.List {
					text := strings.Join(strings.Fields(f.Doc.Text()+" "+f.Comment.Text()), " ")
					for _, name := range f.Names {
						r.means[pkg][spec.Name.Name+"."+name.Name] = text
					}
				}
			}
			return false
		})
	}
	return nil
}

// element is what a pointer, a list or a map is of.
func element(t reflect.Type) reflect.Type {
	for {
		switch {
		case t.Kind() == reflect.Pointer, t.Kind() == reflect.Slice, t.Kind() == reflect.Map:
			t = t.Elem()
		case strings.HasPrefix(t.Name(), "List["):
			t = t.Field(0).Type
		default:
			return t
		}
	}
}

// typeOf is a type in words of JSON.
func typeOf(t reflect.Type) string {
	of := element(t)
	switch {
	case t.Kind() == reflect.Pointer:
		return typeOf(t.Elem())
	case t.Kind() == reflect.Slice, strings.HasPrefix(t.Name(), "List["):
		return "list of " + typeOf(of)
	case t.Kind() == reflect.Map:
		return "map of " + typeOf(of)
	case t == reflect.TypeFor[time.Time]():
		return "time"
	case t.Kind() == reflect.Struct:
		return fmt.Sprintf("[%s](#%s)", t.Name(), strings.ToLower(t.Name()))
	case t.Kind() == reflect.String, t.Kind() == reflect.Bool:
		return t.Kind().String()
	}
	return "number"
}

// answer is the type of an answer in words.
func answer(of any) string { return typeOf(reflect.TypeOf(of)) }
