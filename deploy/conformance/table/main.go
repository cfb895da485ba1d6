// Table reads the JSON report of a run of Kubernetes' e2e tests and prints a Markdown table of the results.
// It fails if a test failed that the list of limits does not name, or if a listed test passed:
//
//	table -mode userspace -limits limits.txt [-all] REPORT
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// limit is a test that a mode does not pass by design.
type limit struct{ reason, remedy string }

// spec is one test of the report, with the fields of Ginkgo that the table needs.
type spec struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	State                   string
	RunTime                 time.Duration
	NumAttempts             int
	Failure                 struct{ Message string }
}

func (s spec) name() string {
	name := strings.Join(append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText), " ")
	return strings.TrimPrefix(strings.Join(strings.Fields(name), " "), "[sig-network] ")
}

func main() {
	mode := flag.String("mode", "userspace", "proxy mode of the run")
	limits := flag.String("limits", "limits.txt", "file of the tests that a mode does not pass by design")
	all := flag.Bool("all", false, "print the passed tests too")
	flag.Parse()
	if err := run(os.Stdout, *mode, *limits, flag.Arg(0), *all); err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, mode, limitsFile, reportFile string, all bool) error {
	text, err := os.ReadFile(limitsFile)
	if err != nil {
		return fmt.Errorf("read limits: %w", err)
	}
	limits, err := parseLimits(string(text), mode)
	if err != nil {
		return fmt.Errorf("parse limits %s: %w", limitsFile, err)
	}
	f, err := os.Open(reportFile)
	if err != nil {
		return fmt.Errorf("open report: %w", err)
	}
	defer f.Close()
	var suites []struct{ SpecReports []spec }
	if err := json.NewDecoder(f).Decode(&suites); err != nil {
		return fmt.Errorf("decode report %s: %w", reportFile, err)
	}
	var specs []spec
	for _, s := range suites {
		specs = append(specs, s.SpecReports...)
	}
	return writeTable(w, specs, limits, all)
}

// parseLimits returns the limits of a mode by the name of the test.
func parseLimits(text, mode string) (map[string]limit, error) {
	limits := map[string]limit{}
	for i, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		fields := strings.Split(line, " | ")
		if len(fields) != 4 || slices.Contains(fields, "") {
			return nil, fmt.Errorf("line %d: want MODE | TEST | REASON | REMEDY", i+1)
		}
		if fields[0] == mode {
			limits[fields[1]] = limit{reason: fields[2], remedy: fields[3]}
		}
	}
	return limits, nil
}

// The results of a test, in the order of the table.
const (
	failed  = "**failed**"
	limited = "design limit"
	skipped = "skipped"
	passed  = "passed"
	unused  = "" // not selected, or no test
)

// judge returns the result of a spec, the reason for the table, and an error if the result is unexpected.
func judge(s spec, limits map[string]limit) (result, reason string, err error) {
	message := oneLine(s.Failure.Message)
	l, listed := limits[s.name()]
	switch {
	case s.LeafNodeType != "It" && (s.State == "passed" || s.State == "skipped"), s.State == "pending",
		s.State == "skipped" && message == "":
		return unused, "", nil
	case s.State == "skipped":
		return skipped, message, nil
	case s.State == "passed" && listed:
		return failed, "listed as a design limit", fmt.Errorf("listed test passed: %s", s.name())
	case s.State == "passed" && s.NumAttempts > 1:
		return passed, fmt.Sprintf("at attempt %d", s.NumAttempts), nil
	case s.State == "passed":
		return passed, "", nil
	case listed:
		return limited, l.reason + " Remedy: " + l.remedy, nil
	}
	return failed, message, fmt.Errorf("test failed: %s", s.name())
}

// writeTable writes the table, worst results first, and returns an error for each unexpected result.
func writeTable(w io.Writer, specs []spec, limits map[string]limit, all bool) error {
	rows, count := map[string][]string{}, map[string]int{}
	known := map[string]bool{}
	var errs []error
	for _, s := range specs {
		known[s.name()] = true
		result, reason, err := judge(s, limits)
		if err != nil {
			errs = append(errs, err)
		}
		count[result]++
		if result != unused && (all || result != passed || reason != "") {
			row := fmt.Sprintf("| %s | %s | %.0f | %s |\n", s.name(), result, s.RunTime.Seconds(), reason)
			rows[result] = append(rows[result], row)
		}
	}
	for name := range limits {
		if !known[name] {
			errs = append(errs, fmt.Errorf("listed test does not exist: %s", name))
		}
	}
	if count[passed]+count[failed]+count[limited] == 0 {
		errs = append(errs, errors.New("no test ran"))
	}
	fmt.Fprint(w, "| test | result | seconds | reason |\n|---|---|---|---|\n")
	for _, result := range []string{failed, limited, skipped, passed} {
		slices.Sort(rows[result])
		fmt.Fprint(w, strings.Join(rows[result], ""))
	}
	fmt.Fprintf(w, "\n%d passed, %d failed, %d listed as design limits, %d skipped by themselves\n",
		count[passed], count[failed], count[limited], count[skipped])
	return errors.Join(errs...)
}

// oneLine makes a message fit into a cell of the table.
func oneLine(message string) string {
	message = strings.ReplaceAll(strings.Join(strings.Fields(message), " "), "|", "/")
	if len(message) > 240 {
		message = message[:240] + "…"
	}
	return message
}
