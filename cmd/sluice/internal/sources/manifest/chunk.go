package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
)

const (
	// maxFileSize bounds the bytes of one file, which is read whole.
	maxFileSize = 64 << 20

	// maxDocuments bounds the documents of one file, each of which is remembered
	// by a hash of its text.
	maxDocuments = 100_000

	// maxValues bounds the values in one document. 10,000 slices of 10 endpoints
	// in one list, as kubectl writes them, are about 3 million.
	maxValues = 4_000_000
)

// chunk is a part of a file that can be parsed by itself: one YAML document or
// one JSON value.
type chunk struct {
	text []byte
	base int       // lines of the file before text
	doc  *document // what text says; preset in place of text: why the rest cannot be split
}

// chunksOf splits the content of a file. JSON in a file called .yaml is read as
// YAML, which it is; a file of any other name is JSON if it begins with a brace.
func chunksOf(path string, data []byte) iter.Seq[chunk] {
	data = bytes.TrimPrefix(data, []byte("\ufeff")) // which Windows editors write
	switch filepath.Ext(path) {
	case ".json":
		return jsonChunks(data)
	case ".yaml", ".yml":
		return yamlChunks(data)
	}
	if bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{")) {
		return jsonChunks(data)
	}
	return yamlChunks(data)
}

// yamlChunks cuts YAML text before each line that starts with "---". The
// specification (YAML 1.2.2, 9.1.2) forbids such a line inside a document, even
// in a quoted or literal text, so a cut never falls within one. Comments and
// directives before "---" stay with the document they belong to.
func yamlChunks(data []byte) iter.Seq[chunk] {
	return func(yield func(chunk) bool) {
		start, line, last := 0, 0, 0 // last: where the text since the last mark begins
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
			empty := firstLine(data[last:cut]) == 0
			last = cut
			if empty {
				continue
			}
			text := data[start:cut]
			if !yield(chunk{text: text, base: line}) {
				return
			}
			line += bytes.Count(text, []byte("\n"))
			start = cut
		}
		yield(chunk{text: data[start:], base: line})
	}
}

// firstLine returns the first line, from 1, that is more than a comment, a
// directive or a mark between documents; 0 if there is none.
func firstLine(text []byte) int {
	number := 0
	for line := range bytes.Lines(text) {
		number++
		line = bytes.TrimSpace(line)
		switch {
		case len(line) == 0, line[0] == '#', line[0] == '%', string(line) == "---", string(line) == "...":
		case bytes.HasPrefix(line, []byte("---")) && bytes.HasPrefix(bytes.TrimSpace(line[3:]), []byte("#")):
		default:
			return number
		}
	}
	return 0
}

// jsonChunks splits JSON values, one after the other.
func jsonChunks(data []byte) iter.Seq[chunk] {
	return func(yield func(chunk) bool) {
		decoder := json.NewDecoder(bytes.NewReader(data))
		for {
			var text json.RawMessage
			err := decoder.Decode(&text)
			end := decoder.InputOffset()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(chunk{doc: jsonError(data, end, err)})
				return
			}
			start := end - int64(len(text))
			if !yield(chunk{text: data[start:end], base: bytes.Count(data[:start], []byte("\n"))}) {
				return
			}
		}
	}
}

// jsonError returns what is wrong with the JSON value that begins at offset.
func jsonError(data []byte, offset int64, err error) *document {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		offset = syntax.Offset
	} else if errors.Is(err, io.ErrUnexpectedEOF) {
		offset = int64(len(bytes.TrimRight(data, " \t\r\n")))
	}
	line := 1 + bytes.Count(data[:max(0, min(offset, int64(len(data)))-1)], []byte("\n"))
	return failed(line, Syntax, fmt.Sprintf("not valid JSON: %v", err))
}

// tooManyValues reports whether text may have more than maxValues, each of which needs
// a character of its own to separate it from the one before.
func tooManyValues(text []byte) bool {
	marks := 0
	for _, mark := range []string{"\n", "\r", ",", ":", "[", "{", "?", "- "} {
		marks += bytes.Count(text, []byte(mark))
	}
	return marks > maxValues
}
