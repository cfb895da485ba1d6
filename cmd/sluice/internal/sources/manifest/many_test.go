package manifest

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestManyFiles: many files and one file of many documents report the same mistakes in the order of their names and
// lines, whichever goroutine finds them first.
func TestManyFiles(t *testing.T) {
	const count = 150
	name := func(i int) string { return fmt.Sprintf("f%03d.yaml", i) }
	address := func(i int) string { return fmt.Sprintf("10.96.1.%d", 1+i) }
	dir, one := t.TempDir(), filepath.Join(t.TempDir(), "one.yaml")
	var all strings.Builder
	var want, together []string
	line := 0
	for i := range count {
		svc, ends := service(fmt.Sprint("s", i), address(i)), slice(fmt.Sprint("s", i), "10.0.0.1")
		at, mistake := 0, ""
		switch {
		case i%10 == 3: // not a plain document
			svc = strings.Replace(svc, "metadata:\n", "metadata:\n  annotations: {a: \"*\\n\"}\n", 1)
		case i%10 == 5:
			svc, at = strings.Replace(svc, "port: 80\n", "port: 0\n", 1), 8
			mistake = fmt.Sprintf("Service default/s%d: spec.ports[0].port: Invalid value: 0: "+
				"must be between 1 and 65535, inclusive", i)
		case i%10 == 7:
			ends, at = strings.Replace(ends, "addressType: IPv4", "addressType: [", 1), 19
			mistake = "not valid YAML: did not find expected node content"
		case i%10 == 9:
			svc, at = service(fmt.Sprint("s", i), address(i-1)), 1
			mistake = fmt.Sprintf("Service default/s%d: TCP %s:80 already belongs to Service default/s%d at %%s; "+
				"give one of the two another", i, address(i-1), i-1)
		}
		both := svc + "---\n" + ends
		write(t, filepath.Join(dir, name(i)), both)
		all.WriteString("---\n" + both)
		if mistake != "" {
			line := line + 1 + at
			if i%10 == 9 {
				want = append(want, fmt.Sprintf("%s:1: %s", name(i), fmt.Sprintf(mistake, name(i-1)+":1")))
			} else {
				want = append(want, fmt.Sprintf("%s:%d: %s", name(i), at, mistake))
				together = append(together, fmt.Sprintf("one.yaml:%d: %s", line, mistake))
			}
		}
		line += 1 + strings.Count(both, "\n")
	}
	write(t, one, all.String())
	for range 3 {
		l := Loader{Paths: []string{dir}}
		r, _ := l.Load()
		if diff := cmp.Diff(want, errorsOf(r.Problems, dir)); diff != "" || r.Rejected != len(want) ||
			r.Objects.Services.Len() != count-len(want) {
			t.Errorf("%d rejected, %d Services (-want +got):\n%s", r.Rejected, r.Objects.Services.Len(), diff)
		}
		l = Loader{Paths: []string{one}}
		r, _ = l.Load()
		got := slices.DeleteFunc(errorsOf(r.Problems, filepath.Dir(one)),
			func(e string) bool { return strings.Contains(e, "already belongs") }) // they are reported last
		if diff := cmp.Diff(together, got); diff != "" || r.Objects.Len() != 0 {
			t.Errorf("in one file, %d objects (-want +got):\n%s", r.Objects.Len(), diff)
		}
	}
}

// TestBadFileAmongMany: a file that breaks keeps its objects, and no file that did not change is parsed again.
func TestBadFileAmongMany(t *testing.T) {
	const count, bad, good = 100, 40, 60
	dir := t.TempDir()
	path := func(i int) string { return filepath.Join(dir, fmt.Sprintf("f%03d.yaml", i)) }
	for i := range count {
		write(t, path(i), service(fmt.Sprint("s", i), fmt.Sprintf("10.96.1.%d", 1+i)))
	}
	l := Loader{Paths: []string{dir}}
	first, _ := l.Load()
	if first.Objects.Services.Len() != count || len(first.Problems) > 0 {
		t.Fatalf("%d Services, %v", first.Objects.Services.Len(), first.Problems)
	}
	write(t, path(bad), "kind: Service\nspec: [\n")
	write(t, path(good), service("new", "10.96.2.1"))
	second, _ := l.Load()
	if len(second.Problems) != 1 || second.Problems[0].File != path(bad) || second.Rejected != 1 {
		t.Errorf("%v, %d rejected", second.Problems, second.Rejected)
	}
	was, is := slices.Collect(first.Objects.Services.All()), slices.Collect(second.Objects.Services.All())
	for i := range count {
		if same := was[i] == is[i]; same == (i == good) {
			t.Errorf("Service %s is the same object: %v", is[i].Name, same)
		}
	}
}

// TestGrouped: a document that is not plain leaves those around it together.
func TestGrouped(t *testing.T) {
	plain := service("a", "10.96.0.1")
	var fresh []chunk
	for i := range 2 * together {
		text := "---\n" + plain
		switch i {
		case 0:
			text = plain // as a file begins
		case 5:
			text = "---\na: &b c\n"
		case 7: // after a mark it is YAML
			text = "---\n{\"kind\": \"Service\"}\n"
		}
		fresh = append(fresh, chunk{text: []byte(text), doc: new(document)})
	}
	var sizes []int
	for _, group := range grouped(fresh) {
		sizes = append(sizes, len(group))
	}
	if want := []int{1, together, together - 1}; !slices.Equal(sizes, want) {
		t.Errorf("groups of %d, want %d", sizes, want)
	}
	if roots := readTrees(fresh[:5]); len(roots) != 5 || keyOf(roots[0], "kind") < 0 {
		t.Errorf("%d trees of 5 documents", len(roots))
	}
}
