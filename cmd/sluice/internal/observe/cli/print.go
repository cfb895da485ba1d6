package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
)

// clean escapes what a terminal would obey, and what has no shape: control characters, marks of direction, and bytes
// that are no text.
func clean(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) < 0 {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			b.WriteString(escaped(r))
		}
	}
	return b.String()
}

// Lines is clean for text of several lines.
func Lines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = clean(lines[i])
	}
	return strings.Join(lines, "\n")
}

// escaped writes a rune as JSON and Go have it.
func escaped(r rune) string { return strings.Trim(strconv.QuoteRuneToASCII(r), "'") }

// table is rows of cells.
type table struct {
	header []string
	wide   int // how many columns at the end are for wide output only
	rows   [][]string

	printed int   // rows that were streamed
	widths  []int // of columns so far
}

// add appends a row of cells, which may be anything.
func (t *table) add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = clean(fmt.Sprint(c))
		if row[i] == "" {
			row[i] = "<none>"
		}
	}
	t.rows = append(t.rows, row)
}

// print writes a table as kubectl does, which is nothing without rows.
func (t *table) print(w io.Writer, wide, noHeaders bool) error {
	if len(t.rows) == 0 {
		return nil
	}
	columns := len(t.header)
	if !wide {
		columns -= t.wide
	}
	out := tabwriter.NewWriter(w, 6, 4, 3, ' ', 0)
	line := func(cells []string) { fmt.Fprintln(out, strings.Join(cells[:columns], "\t")) }
	if !noHeaders {
		line(t.header)
	}
	for _, row := range t.rows {
		line(row)
	}
	return out.Flush()
}

// stream writes the rows that there are now below those before. Columns get wider, and not narrower again.
func (t *table) stream(w io.Writer, wide, noHeaders bool) error {
	columns := len(t.header)
	if !wide {
		columns -= t.wide
	}
	rows := t.rows
	if len(rows) == 0 {
		return nil
	}
	if t.widths == nil {
		if t.widths = make([]int, columns); !noHeaders {
			rows = append([][]string{t.header}, rows...)
		}
	}
	for _, row := range rows {
		for i := range columns {
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	var out bytes.Buffer
	for _, row := range rows {
		for i, cell := range row[:columns-1] {
			fmt.Fprintf(&out, "%-*s   ", t.widths[i], cell)
		}
		fmt.Fprintln(&out, row[columns-1])
	}
	t.printed += len(t.rows)
	_, err := w.Write(out.Bytes())
	return err
}

// show writes an answer in the form that was requested; table makes the one for people, who hear of it beside the
// output if there is nothing.
func (v *view) show(answer any, table func() *table) error {
	if v.form == asTable || v.form == asWide {
		t := table()
		if len(t.rows) == 0 {
			fmt.Fprintln(v.errs, "nothing found")
		}
		return t.print(v.out, v.form == asWide, v.noHeaders)
	}
	return Print(v.out, answer, v.form == asYAML)
}

// say writes an answer in the form that was requested, which is a sentence for people.
func (v *view) say(answer any, sentence string) error {
	if v.form == asTable || v.form == asWide {
		_, err := fmt.Fprintln(v.out, clean(sentence))
		return err
	}
	return Print(v.out, answer, v.form == asYAML)
}

// Print writes an answer as JSON or YAML.
func Print(w io.Writer, answer any, asYAML bool) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(answer); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	out := text.String()
	switch {
	case !asYAML:
		out = inert(out, false)
	case inert(out, true) != out: // which YAML would have as it is; but JSON is YAML, too
		out = inert(out, true)
	default:
		converted, err := yaml.JSONToYAML(text.Bytes())
		if err != nil {
			return fmt.Errorf("write the answer: %w", err)
		}
		out = string(converted)
	}
	_, err := io.WriteString(w, out)
	return err
}

// inert escapes what the encoder of JSON leaves of characters that terminals obey, as JSON or YAML has it.
func inert(s string, asYAML bool) string {
	obeyed := func(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }
	if strings.IndexFunc(s, obeyed) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case !obeyed(r):
			b.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		case asYAML:
			fmt.Fprintf(&b, `\U%08x`, r)
		default: // a pair of surrogates
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		}
	}
	return b.String()
}

// list is what lists look like in JSON and YAML.
func list[T any](items []T) api.List[T] { return api.List[T]{Items: items} }

// since is the age of something, as kubectl has it.
func since(t time.Time) string { return duration.HumanDuration(max(0, time.Since(t))) }

// size is a number of bytes in few digits.
func size(n uint64) string {
	const units = "KMGTPE"
	if n < 10_000 {
		return strconv.FormatUint(n, 10)
	}
	f, unit := float64(n)/1024, 0
	for f >= 1024 && unit < len(units)-1 {
		f, unit = f/1024, unit+1
	}
	return fmt.Sprintf("%.1f%ci", f, units[unit])
}
