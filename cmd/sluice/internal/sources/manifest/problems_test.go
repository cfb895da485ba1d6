package manifest

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestProblems reads testdata/problems.txt: files, each with the problems that it
// is to have, and where. Decoding and most checks are those of the API server, so
// most words are, too.
func TestProblems(t *testing.T) {
	const golden = "testdata/problems.txt"
	text, err := os.ReadFile(golden)
	testbed.Check(t, err)
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

// TestTogether: documents that are read by one decoder say what they say alone.
func TestTogether(t *testing.T) {
	text, err := os.ReadFile("testdata/problems.txt")
	testbed.Check(t, err)
	good := "---\n" + service("a", "10.96.0.1") + "---\n" + slice("a", "10.0.0.1")
	anchor := strings.Replace(service("b", "10.96.0.2"), "name: b", "name: &b b", 1)
	for _, part := range append(strings.Split(string(text), "\n== ")[1:], "two\n"+service("b", "10.96.0.2")+"...\nb: 2",
		"none\n", "null\n~", "of another\n"+anchor+"---\n"+strings.Replace(anchor, "&b b", "*b", 1)) {
		title, rest, _ := strings.Cut(part, "\n")
		content, _, _ := strings.Cut(rest+"\n", "\n--\n")
		for _, whole := range []string{good + "---\n" + content + "\n" + good, good + "---\n" + content + "\n",
			content + "\n" + good} {
			var together, alone []chunk
			for c := range yamlChunks([]byte(whole)) {
				together = append(together, chunk{text: c.text, doc: new(document)})
				alone = append(alone, chunk{text: c.text, doc: new(document)})
			}
			parse(together)
			for i, c := range alone {
				if c.parse(nil); !reflect.DeepEqual(c.doc, together[i].doc) {
					t.Errorf("%s: document %d is %+v, and alone %+v", title, i, together[i].doc, c.doc)
				}
			}
		}
	}
}
