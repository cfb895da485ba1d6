package manifest

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
)

// maxExpanded bounds the text that the aliases of one document stand for: plenty
// for labels that are written once, too little to multiply a document into
// gigabytes.
const maxExpanded = 16 << 20

// surrogate is half of a character beyond 16 bits, as JSON writers escape it.
var surrogate = regexp.MustCompile(`\\u[dD][89a-fA-F][0-9a-fA-F]{2}`)

// nodes returns the syntax tree of the chunk, in which lines are known; an empty
// one if it has no tree. Only messages and aliases need it: it costs as much as
// the decoding.
func (p *parser) nodes() *yamlv3.Node {
	if p.root == nil {
		p.root = new(yamlv3.Node) // the parser refuses surrogates
		err := yamlv3.NewDecoder(bytes.NewReader(surrogate.ReplaceAll(p.text, nil))).Decode(p.root)
		if err != nil && !errors.Is(err, io.EOF) || len(p.root.Content) == 0 {
			p.root = &yamlv3.Node{Line: p.line}
		} else {
			p.root = p.root.Content[0]
		}
	}
	return p.root
}

// pathStep is a part of a path: a name, or an index or key in brackets.
var pathStep = regexp.MustCompile(`\[[^\]]*\]|[^.\[]+`)

// lineOf returns the line of the field at a path such as "spec.ports[0].port", or
// of the nearest field around it that is written down.
func (p *parser) lineOf(path string) int {
	if path == "" {
		return p.line
	}
	n, line := p.nodes(), p.line
	for _, name := range pathStep.FindAllString(path, -1) {
		name = strings.Trim(name, "[]")
		index, err := strconv.Atoi(name)
		if n = target(n); n.Kind == yamlv3.SequenceNode && err != nil && len(n.Content) == 1 {
			n = target(n.Content[0]) // the decoder leaves out the index
		}
		switch {
		case n.Kind == yamlv3.SequenceNode && err == nil && index >= 0 && index < len(n.Content):
			n = n.Content[index]
			line = n.Line
			continue
		case n.Kind != yamlv3.MappingNode:
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
func keyOf(n *yamlv3.Node, name string) int {
	for i := len(n.Content) - 2; i >= 0; i -= 2 {
		if n.Content[i].Value == name {
			return i
		}
	}
	return -1
}

// target follows an alias.
func target(n *yamlv3.Node) *yamlv3.Node {
	if n.Kind == yamlv3.AliasNode {
		return n.Alias
	}
	return n
}

// aliasesBounded reports whether the document stays below maxExpanded with all
// aliases replaced by what they stand for. A cycle does not.
func (p *parser) aliasesBounded() bool {
	return expanded(p.nodes(), make(map[*yamlv3.Node]int)) <= maxExpanded+len(p.text)
}

// expanded returns the size of a tree without aliases, or more than any bound.
// known holds sizes of anchored nodes; one that is being measured counts as endless.
func expanded(n *yamlv3.Node, known map[*yamlv3.Node]int) int {
	const endless = 1 << 40
	n = target(n)
	if size, ok := known[n]; ok {
		return size
	}
	if n.Anchor != "" {
		known[n] = endless
	}
	size := 8 + len(n.Value)
	for _, child := range n.Content {
		size = min(size+expanded(child, known), endless)
	}
	if n.Anchor != "" {
		known[n] = size
	}
	return size
}
