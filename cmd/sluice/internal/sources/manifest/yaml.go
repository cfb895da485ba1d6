package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	// maxExpanded bounds the text that the aliases of one document stand for: plenty
	// for labels that are written once, too little to multiply a document into
	// gigabytes.
	maxExpanded = 16 << 20

	// maxDepth is that of both libraries; only a cycle of aliases is deeper.
	maxDepth = 10_000

	together    = 32       // documents that one decoder reads
	maxTogether = 64 << 10 // bytes of each
)

// surrogate is half of a character beyond 16 bits, as JSON writers escape it.
var surrogate = regexp.MustCompile(`\\u[dD][89a-fA-F][0-9a-fA-F]{2}`)

// readTree returns the syntax tree of a document, in which lines are known; nil if it
// is empty.
func readTree(text []byte) (root *yaml.Node, err error) {
	if bytes.Contains(text, []byte(`\u`)) {
		text = surrogate.ReplaceAll(text, nil) // which the library refuses
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var document yaml.Node
		err := decoder.Decode(&document)
		switch {
		case errors.Is(err, io.EOF):
			return root, nil
		case err != nil:
			return nil, err
		case document.Content[0].Tag == "!!null":
		case root != nil:
			return nil, errors.New("more than one document without a mark between them")
		default:
			root = document.Content[0]
		}
	}
}

const mark = "---" // begins a document

// plain reports whether one decoder may read the chunk among others. JSON is not plain: it needs no tree.
func (c *chunk) plain() bool {
	return len(c.text) <= maxTogether && bytes.HasSuffix(c.text, []byte("\n")) && !bytes.ContainsAny(c.text, `&*%\`) &&
		!bytes.HasPrefix(bytes.TrimSpace(c.text), []byte("{"))
}

// grouped returns chunks in the groups that parse is to read, each that is not plain by itself.
func grouped(chunks []chunk) (groups [][]chunk) {
	plain := make([]chunk, 0, len(chunks))
	for _, c := range chunks {
		if c.plain() {
			plain = append(plain, c)
		} else {
			groups = append(groups, []chunk{c})
		}
	}
	return slices.AppendSeq(groups, slices.Chunk(plain, together))
}

// readTrees returns the trees of chunks with one document each, whose lines are counted from the first chunk. nil: they
// have to be read one by one, since one is not plain: it has two documents, say, or may know another's anchor.
func readTrees(chunks []chunk) (roots []*yaml.Node) {
	size := 0
	for _, c := range chunks {
		if !c.plain() {
			return nil
		}
		size += len(mark+"\n") + len(c.text)
	}
	text := make([]byte, 0, size)
	for _, c := range chunks {
		if !bytes.HasPrefix(c.text, []byte(mark)) { // the first of its file
			text = append(text, mark+"\n"...)
		}
		text = append(text, c.text...)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for range chunks {
		var document yaml.Node
		if decoder.Decode(&document) != nil {
			return nil
		}
		roots = append(roots, document.Content[0])
	}
	if decoder.Decode(new(yaml.Node)) != io.EOF { // one has more than one
		return nil
	}
	return roots
}

// words are what kubectl, as YAML 1.1, takes for true and false beside these two.
var words = map[string]string{
	"y": "true", "Y": "true", "yes": "true", "Yes": "true", "YES": "true", "on": "true", "On": "true", "ON": "true",
	"n": "false", "N": "false", "no": "false", "No": "false", "NO": "false", "off": "false", "Off": "false",
	"OFF": "false",
}

// jsonWriter writes a syntax tree as JSON.
type jsonWriter struct {
	out   []byte
	limit int // of out
	depth int
	err   *Error // the first one
}

// toJSON returns a tree as JSON. What is repeated in it is left for the decoder to refuse.
func toJSON(root *yaml.Node, text []byte) ([]byte, *Error) {
	w := jsonWriter{out: make([]byte, 0, len(text)+len(text)/4), limit: math.MaxInt}
	if bytes.IndexByte(text, '&') >= 0 {
		w.limit = len(text) + maxExpanded
	}
	w.value(root)
	return w.out, w.err
}

func (w *jsonWriter) value(n *yaml.Node) {
	n = target(n)
	w.depth++
	if w.depth > maxDepth || len(w.out) > w.limit {
		w.fail(n, Limit, fmt.Sprintf(
			"YAML aliases expand the document to more than %d bytes; write the values out", maxExpanded))
	}
	switch {
	case w.err != nil:
	case n.Kind == yaml.ScalarNode:
		w.scalar(n)
	case n.Kind == yaml.SequenceNode:
		w.out = append(w.out, '[')
		for i, item := range n.Content {
			if i > 0 {
				w.out = append(w.out, ',')
			}
			w.value(item)
		}
		w.out = append(w.out, ']')
	default:
		w.out = append(w.out, '{')
		for i, pairs := 0, w.pairs(n); i < len(pairs); i += 2 {
			if i > 0 {
				w.out = append(w.out, ',')
			}
			w.text(target(pairs[i]).Value)
			w.out = append(w.out, ':')
			w.value(pairs[i+1])
		}
		w.out = append(w.out, '}')
	}
	w.depth--
}

// pairs returns the keys and values of a mapping, those that are merged into it included.
func (w *jsonWriter) pairs(n *yaml.Node) []*yaml.Node {
	merges := false
	for i := 0; i < len(n.Content); i += 2 {
		key := target(n.Content[i])
		merges = merges || key.Tag == "!!merge"
		if key.Kind != yaml.ScalarNode {
			w.fail(key, Syntax, "not valid YAML: a mapping or a list cannot be a key")
		}
	}
	if !merges || w.err != nil {
		return n.Content
	}
	var fields map[string]yaml.Node
	if err := n.Decode(&fields); err != nil {
		w.fail(n, Syntax, "not valid YAML: "+strings.TrimPrefix(err.Error(), "yaml: "))
	}
	var all []*yaml.Node
	for name, value := range fields {
		all = append(all, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, &value)
	}
	return all
}

func (w *jsonWriter) scalar(n *yaml.Node) {
	switch n.Tag {
	case "!!str", "!!timestamp":
		if word := words[n.Value]; word != "" && n.Style == 0 {
			w.out = append(w.out, word...)
		} else {
			w.text(n.Value)
		}
	default: // a number, say, which may be written as JSON does not allow
		data := []byte(n.Value)
		if !json.Valid(data) {
			var value any
			err := n.Decode(&value)
			if err == nil {
				data, err = json.Marshal(value)
			}
			if err != nil {
				w.fail(n, Syntax, "not valid YAML: "+err.Error())
			}
		}
		w.out = append(w.out, data...)
	}
}

// text writes a string.
func (w *jsonWriter) text(s string) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s)
			w.out = append(w.out, quoted...)
			return
		}
	}
	w.out = append(w.out, '"')
	w.out = append(w.out, s...)
	w.out = append(w.out, '"')
}

func (w *jsonWriter) fail(n *yaml.Node, kind Kind, reason string) {
	if w.err == nil {
		w.err = &Error{Line: n.Line, Kind: kind, Reason: reason}
	}
}

// pathStep is a part of a path: a name, or an index or key in brackets.
var pathStep = regexp.MustCompile(`\[[^\]]*\]|[^.\[]+`)

// lineOf returns the line of the field at a path such as "spec.ports[0].port", or
// of the nearest field around it that is written down; 0 if there is none.
func lineOf(n *yaml.Node, path string) (line int) {
	for _, name := range pathStep.FindAllString(path, -1) {
		name = strings.Trim(name, "[]")
		index, err := strconv.Atoi(name)
		if n = target(n); n.Kind == yaml.SequenceNode && err != nil && len(n.Content) == 1 {
			n = target(n.Content[0]) // the decoder leaves out the index
		}
		switch {
		case n.Kind == yaml.SequenceNode && err == nil && index >= 0 && index < len(n.Content):
			n = n.Content[index]
			line = n.Line
			continue
		case n.Kind != yaml.MappingNode:
			return line
		}
		key := keyOf(n, name)
		if key < 0 {
			return line
		}
		line, n = n.Content[key].Line, n.Content[key+1]
	}
	return line
}

// keyOf returns the index of the last key of that name in a mapping, or -1.
func keyOf(n *yaml.Node, name string) int {
	for i := len(n.Content) - 2; i >= 0; i -= 2 {
		if n.Content[i].Value == name {
			return i
		}
	}
	return -1
}

// target follows an alias.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}
