package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	limitsText = "# comment\n\n" +
		"userspace | Services keep the address | The node's address is seen. | --proxy-mode=auto\n" +
		"nftables | Services fly | No wings. | none\n"
	report = `[{"SpecReports": [
		{"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
		{"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "keep the address",
			"State": "@STATE@", "RunTime": 2000000000, "Failure": {"Message": "Expected\n a to equal b"}},
		{"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "serve",
			"State": "passed", "NumAttempts": 2},
		{"ContainerHierarchyTexts": ["[sig-network] Proxy"], "LeafNodeType": "It", "LeafNodeText": "not selected",
			"State": "skipped"},
		{"ContainerHierarchyTexts": ["[sig-network] Proxy"], "LeafNodeType": "It", "LeafNodeText": "needs nodes",
			"State": "skipped", "Failure": {"Message": "2 nodes | of 3"}}]}]`
)

func TestTable(t *testing.T) {
	for _, c := range []struct{ name, mode, state, row, err string }{
		{"limit", "userspace", "failed", "| Services keep the address | design limit | 2 | The node's address is seen. Remedy: --proxy-mode=auto |", ""},
		{"limit passes", "userspace", "passed", "| **failed** | 2 | listed as a design limit", "listed test passed: Services keep the address"},
		{"failure", "iptables", "failed", "| **failed** | 2 | Expected a to equal b |", "test failed: Services keep the address"},
		{"timeout", "iptables", "timedout", "| **failed** |", "test failed: Services keep the address"},
		{"unknown limit", "nftables", "passed", "| Services serve | passed | 0 | at attempt 2 |", "listed test does not exist: Services fly"},
		{"success", "iptables", "passed", "| Proxy needs nodes | skipped | 0 | 2 nodes / of 3 |", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			limits, file := filepath.Join(dir, "limits"), filepath.Join(dir, "report")
			write(t, limits, limitsText)
			write(t, file, strings.Replace(report, "@STATE@", c.state, 1))
			var out strings.Builder
			err := run(&out, c.mode, limits, file, false)
			if !strings.Contains(out.String(), c.row) {
				t.Errorf("no row %q in\n%s", c.row, out.String())
			}
			if got := errText(err); got != c.err {
				t.Errorf("error %q, want %q", got, c.err)
			}
			if strings.Contains(out.String(), "not selected") {
				t.Errorf("a test that did not run is in\n%s", out.String())
			}
		})
	}
}

func TestNothingRan(t *testing.T) {
	if got := errText(writeTable(&strings.Builder{}, nil, nil, true)); got != "no test ran" {
		t.Errorf("error %q", got)
	}
}

// TestLimits reads the list of this repository.
func TestLimits(t *testing.T) {
	text, err := os.ReadFile("../limits.txt")
	if err != nil {
		t.Fatal(err)
	}
	if limits, err := parseLimits(string(text), "userspace"); err != nil || len(limits) == 0 {
		t.Errorf("%d limits, error %v", len(limits), err)
	}
	if _, err := parseLimits("userspace | test | reason", "userspace"); err == nil {
		t.Error("a line without a remedy is accepted")
	}
}

// TestScripts checks the syntax of the scripts, which "make test" does not run.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("../*")
	if err != nil {
		t.Fatal(err)
	}
	var scripts int
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || info.IsDir() || filepath.Ext(file) != "" {
			continue
		}
		scripts++
		if out, err := exec.Command("bash", "-n", file).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", file, err, out)
		}
	}
	if scripts < 8 {
		t.Errorf("%d scripts found", scripts)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
