package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"regexp"
	"sort"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// chunk is a part of a file that can be parsed by itself: one YAML document, as
// a rule, or a whole JSON file.
type chunk struct {
	text []byte
	base int // lines of the file before text
}

// chunks cuts YAML text before each line that starts with "---". The
// specification (YAML 1.2.2, 9.1.2) forbids such a line inside a document, even
// in a quoted or literal text, so a cut never falls within one. Comments and
// directives before the first "---" stay with the document they belong to.
func chunks(data []byte) iter.Seq[chunk] {
	return func(yield func(chunk) bool) {
		start, line := 0, 0
		for pos := 0; pos < len(data); {
			next := bytes.Index(data[pos:], []byte("\n---"))
			if next < 0 {
				break
			}
			cut := pos + next + 1
			pos = cut + len("---")
			if pos < len(data) && !bytes.ContainsRune([]byte(" \t\r\n"), rune(data[pos])) {
				continue
			}
			text := data[start:cut]
			if start == 0 && isPreamble(text) {
				continue
			}
			if !yield(chunk{text, line}) {
				return
			}
			line += bytes.Count(text, []byte("\n"))
			start = cut
		}
		yield(chunk{data[start:], line})
	}
}

// isPreamble tells whether text has nothing but comments and directives.
func isPreamble(text []byte) bool {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return false
		}
	}
	return true
}

// maxNodes bounds the values in one document. A parsed value takes 160 to 250
// bytes (measured, yaml/v3 3.0.5), so a document costs at most 1 GB for a
// moment. 10,000 slices of 10 endpoints in one list, as kubectl writes them, are
// about 3 million.
const maxNodes = 4_000_000

// parseYAML returns the root nodes of the documents in text. The error, if any,
// has its line.
func parseYAML(text []byte) ([]*yaml.Node, *Error) {
	// Each node needs a character of its own to set it off from the one before.
	marks := 0
	for i, c := range text {
		switch c {
		case '\n', '\r', ',', ':', '[', '{', '?':
			marks++
		case '-':
			if i+1 < len(text) && text[i+1] == ' ' {
				marks++
			}
		}
	}
	if marks > maxNodes {
		return nil, tooManyNodes(1)
	}
	nodes, err := decodeYAML(text)
	if err != nil {
		line, message := splitYAMLError(err)
		return nil, &Error{
			Line:   syntaxLine(text, message, line),
			Reason: fmt.Sprintf("not valid YAML: %s; check the indentation, quotes and brackets here", message),
		}
	}
	return nodes, nil
}

func tooManyNodes(line int) *Error {
	return &Error{Line: line, Reason: fmt.Sprintf("the document has more than %d values; split it into several documents", maxNodes)}
}

func decodeYAML(text []byte) ([]*yaml.Node, error) {
	var nodes []*yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var document yaml.Node
		switch err := decoder.Decode(&document); {
		case errors.Is(err, io.EOF):
			return nodes, nil
		case err != nil:
			return nodes, err
		}
		nodes = append(nodes, document.Content...)
	}
}

// yamlErrorForm is the text of the errors of yaml/v3, which have no type.
var yamlErrorForm = regexp.MustCompile(`^yaml: (?:line (\d+): )?(?s:(.*))$`)

func splitYAMLError(err error) (line int, message string) {
	match := yamlErrorForm.FindStringSubmatch(err.Error())
	if match == nil {
		return 1, err.Error()
	}
	line, _ = strconv.Atoi(match[1])
	return max(line, 1), match[2]
}

// syntaxLine finds the line of a syntax error. The parser itself tells the line
// where the construct began that it could not finish, counted from 0 or from 1,
// or none at all. But it reads from left to right, so the shortest beginning of
// text that fails in the same way ends with the culprit.
func syntaxLine(text []byte, message string, told int) int {
	if len(text) > 256<<10 {
		return told // the search parses the text some twenty times
	}
	ends := []int{}
	for i, c := range text {
		if c == '\n' {
			ends = append(ends, i+1)
		}
	}
	if len(ends) == 0 || ends[len(ends)-1] != len(text) {
		ends = append(ends, len(text))
	}
	return 1 + sort.Search(len(ends)-1, func(i int) bool {
		_, err := decodeYAML(text[:ends[i]])
		if err == nil {
			return false
		}
		_, m := splitYAMLError(err)
		return m == message
	})
}
