package manifest

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write testdata/problems.txt as it is now")

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
		content, want, found := strings.Cut(rest, "\n--\n")
		if !found {
			content, want = strings.TrimSuffix(rest, "\n--"), ""
		}
		file, _, _ := strings.Cut(title, " ")
		got := strings.Join(reported(parseText(file, content+"\n").problems), "\n")
		out.WriteString("== " + title + "\n" + content + "\n--\n")
		if got != "" {
			out.WriteString(got + "\n")
		}
		if diff := cmp.Diff(strings.TrimSuffix(want, "\n"), got); diff != "" && !*update {
			t.Errorf("%s: problems (-want +got):\n%s", title, diff)
		}
	}
	if *update {
		if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
