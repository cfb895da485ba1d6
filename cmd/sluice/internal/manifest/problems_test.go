package manifest

import (
	"os"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/bench/testbed"
)

// TestProblems reads testdata/problems.txt: files, each with the problems that it
// is to have, and where. Decoding and most checks are those of the API server, so
// most words are, too.
func TestProblems(t *testing.T) {
	const golden = "testdata/problems.txt"
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, part := range strings.Split("\n"+string(text), "\n== ")[1:] {
		title, rest, _ := strings.Cut(part, "\n")
		content, _, _ := strings.Cut(rest+"\n", "\n--\n")
		file, _, _ := strings.Cut(title, " ")
		out.WriteString("== " + title + "\n" + content + "\n--\n")
		for _, problem := range reported(parseText(file, content+"\n").problems) {
			out.WriteString(problem + "\n")
		}
	}
	testbed.Golden(t, golden, out.String())
}
