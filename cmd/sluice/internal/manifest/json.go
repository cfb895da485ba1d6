package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxDepth bounds how deep values may nest where the format does not; the API
// types nest 10 deep.
const maxDepth = 200

// parseJSON reads JSON values, one after the other, into the nodes of YAML, so
// that both formats share everything that follows. The YAML parser itself will
// not do: it refuses the escaped surrogate pairs that JSON writers use for
// characters beyond 16 bits.
func parseJSON(text []byte) ([]*yaml.Node, *Error) {
	r := jsonReader{text: text, line: 1}
	r.decoder = json.NewDecoder(bytes.NewReader(text))
	r.decoder.UseNumber()
	var roots []*yaml.Node
	for {
		root, err := r.value(0)
		var reported *Error
		switch {
		case errors.Is(err, io.EOF):
			return roots, nil
		case errors.As(err, &reported):
			return nil, reported
		case err != nil:
			// What could not be read begins behind the last good token.
			offset := r.decoder.InputOffset()
			rest := text[offset:]
			r.advance(offset + int64(len(rest)-len(bytes.TrimLeft(rest, " \t\r\n,:"))))
			return nil, &Error{Line: r.line, Reason: fmt.Sprintf("not valid JSON: %s; check the commas, quotes and brackets here", jsonMessage(err))}
		}
		roots = append(roots, root)
	}
}

func jsonMessage(err error) string {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return "it ends in the middle of a value"
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

type jsonReader struct {
	decoder *json.Decoder
	text    []byte
	counted int64 // bytes of text whose lines are in line
	line    int
	nodes   int
}

// advance moves line on to that of the byte at offset.
func (r *jsonReader) advance(offset int64) {
	r.line += bytes.Count(r.text[r.counted:offset], []byte("\n"))
	r.counted = offset
}

// token returns the next token and a node for it. io.EOF is returned only
// between values, at depth 0.
func (r *jsonReader) token(depth int) (json.Token, *yaml.Node, error) {
	token, err := r.decoder.Token()
	if err != nil {
		if depth > 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, nil, err
	}
	// A token ends where the decoder stands, on the line where it began: JSON
	// has no token with a line break in it.
	r.advance(r.decoder.InputOffset())
	if r.nodes++; r.nodes > maxNodes {
		return nil, nil, tooManyNodes(r.line)
	}
	if depth > maxDepth {
		return nil, nil, &Error{Line: r.line, Reason: fmt.Sprintf("values are nested more than %d deep, which no manifest needs", maxDepth)}
	}
	return token, &yaml.Node{Line: r.line}, nil
}

func (r *jsonReader) value(depth int) (*yaml.Node, error) {
	token, n, err := r.token(depth)
	if err != nil {
		return nil, err
	}
	n.Kind = yaml.ScalarNode
	switch token := token.(type) {
	case json.Delim:
		return n, r.collection(n, token, depth)
	case string:
		n.Tag, n.Value, n.Style = "!!str", token, yaml.DoubleQuotedStyle
	case json.Number:
		n.Tag, n.Value = "!!int", token.String()
		if strings.ContainsAny(n.Value, ".eE") {
			n.Tag = "!!float"
		}
	case bool:
		n.Tag, n.Value = "!!bool", strconv.FormatBool(token)
	case nil:
		n.Tag, n.Value = "!!null", "null"
	}
	return n, nil
}

func (r *jsonReader) collection(n *yaml.Node, open json.Delim, depth int) error {
	n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
	if open == '{' {
		n.Kind, n.Tag = yaml.MappingNode, "!!map"
	}
	// Keys come as tokens of their own, so an object is a list of twice the length.
	for r.decoder.More() {
		child, err := r.value(depth + 1)
		if err != nil {
			return err
		}
		n.Content = append(n.Content, child)
	}
	_, _, err := r.token(depth + 1) // the closing bracket
	return err
}
