package testbed

import (
	"strings"
	"testing"
)

// RunScript returns a script with the output of its commands in place of what it expected. A script is a sequence of
// commands:
//
//	# a comment
//	command arguments
//	more lines, if the command takes any
//	----
//	expected output, up to an empty line
//
// run gets the number of the line and the lines of a command.
func RunScript(t *testing.T, script string, run func(line int, command []string) string) string {
	t.Helper()
	var out strings.Builder
	line := 1
	for i, paragraph := range strings.Split(strings.TrimRight(script, "\n"), "\n\n") {
		if i > 0 {
			out.WriteString("\n")
		}
		for strings.HasPrefix(paragraph, "#") { // before a command, too
			comment, rest, _ := strings.Cut(paragraph, "\n")
			out.WriteString(comment + "\n")
			paragraph, line = rest, line+1
		}
		if paragraph == "" {
			line++
			continue
		}
		command, _, ok := strings.Cut(paragraph, "\n----")
		if !ok {
			t.Fatalf("line %d: command without ----", line)
		}
		out.WriteString(command + "\n----\n")
		if result := strings.TrimRight(run(line, strings.Split(command, "\n")), "\n"); result != "" {
			out.WriteString(result + "\n")
		}
		line += strings.Count(paragraph, "\n") + 2
	}
	return out.String()
}
