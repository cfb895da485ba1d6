package page

import (
	"fmt"
	"html"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// html/template is not used, since it calls methods by name: the linker then keeps every exported method of every
// package, which made the program 9 MB larger.

// literal is HTML of ours: a constant is one without being made one, and a name that comes from outside is not.
type literal string

// writer writes a page.
type writer struct{ strings.Builder }

// put writes HTML, in which each % stands for the next value, as text or as the value of an attribute in quotes.
func (w *writer) put(of literal, values ...any) {
	for {
		before, after, found := strings.Cut(string(of), "%")
		w.WriteString(before)
		if !found {
			return
		}
		switch v := values[0].(type) {
		case string:
			w.WriteString(escape(v))
		case float64:
			w.WriteString(strconv.FormatFloat(v, 'f', -1, 64))
		default:
			w.WriteString(escape(fmt.Sprint(v)))
		}
		of, values = literal(after), values[1:]
	}
}

// choose returns HTML on a condition.
func choose(condition bool, of literal) literal {
	if condition {
		return of
	}
	return ""
}

// escape makes text that means nothing in HTML, and looks like what it is: control characters, marks of direction, and
// bytes that are no text, are written as Go does.
func escape(text string) string {
	shown := func(r rune) bool { return unicode.IsPrint(r) || r == '\n' || r == nonBreaking }
	if strings.IndexFunc(text, func(r rune) bool { return !shown(r) || r == utf8.RuneError }) < 0 {
		return html.EscapeString(text)
	}
	var b strings.Builder
	for i, r := range text {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], string(utf8.RuneError)):
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case shown(r):
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return html.EscapeString(b.String())
}
