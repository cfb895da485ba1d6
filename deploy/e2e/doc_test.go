package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCasesNameTests holds that the tests that CASES.md names exist: those with an
// asterisk in packages of cmd/sluice, the others here.
func TestCasesNameTests(t *testing.T) {
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
	cases, err := os.ReadFile("CASES.md")
	if err != nil {
		t.Fatal(err)
	}
	here := sources("*_test.go")
	program := sources("../../cmd/sluice/internal/*/*_test.go") + sources("../../cmd/sluice/internal/*/*/*_test.go")
	names := regexp.MustCompile(`\b((?:Test|Benchmark)[A-Z]\w+)(\*?)`).FindAllStringSubmatch(string(cases), -1)
	if len(names) < 30 {
		t.Fatalf("only %d names in CASES.md", len(names))
	}
	for _, name := range names {
		in := here
		if name[2] == "*" {
			in = program
		}
		if !strings.Contains(in, "\nfunc "+name[1]+"(") {
			t.Errorf("CASES.md names %s, which does not exist", name[0])
		}
	}
}
