package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocNamesTests holds that the tests that doc.go names exist: those with an
// asterisk in cmd/sluice/internal/e2e, the others here.
func TestDocNamesTests(t *testing.T) {
	sources := func(pattern string) string {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no files %s: %v", pattern, err)
		}
		var all strings.Builder
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
		return all.String()
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(doc), "# Where the upstream cases are")
	here, program := sources("*_test.go"), sources("../../cmd/sluice/internal/e2e/*_test.go")
	names := regexp.MustCompile(`\b((?:Test|Benchmark)[A-Z]\w+)(\*?)`).FindAllStringSubmatch(table, -1)
	if len(names) < 30 {
		t.Fatalf("only %d names in doc.go", len(names))
	}
	for _, name := range names {
		in := here
		if name[2] == "*" {
			in = program
		}
		if !strings.Contains(in, "\nfunc "+name[1]+"(") {
			t.Errorf("doc.go names %s, which does not exist", name[0])
		}
	}
}
