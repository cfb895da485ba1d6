package houserules

import (
	"fmt"
	"path"
	"regexp"
	"strings"
)

const (
	longestSentence     = 35 // words
	longestReadme       = 130
	longestArchitecture = 160
	longestPage         = 200 // lines, of docs/ and CONTRIBUTING.md
	longestDecision     = 60  // lines, of docs/decisions/
)

// dialect are phrases that a reader who has English as a second language does not find in a dictionary, or that have no
// noun: say immediately, until you undo it, the endpoints that.
var dialect = regexp.MustCompile(`(?i)\b(at once|a moment ago|in the midst|from then on|for good|those that|` +
	`that of which|hears? of|heard of|comes? by|goes by|leave be|as many as may|is had|yet to come|what becomes of|` +
	`of these are|nor does|there is none of|what it is of)\b`)

// listItem is the start of an item or a row.
var (
	listItem    = regexp.MustCompile(`^\s*([-*]|\d+\.)\s+`)
	sentenceEnd = regexp.MustCompile("[.!?:;][)*]*\\s+[A-Z`\"\\[*]")
	anyBlock    = regexp.MustCompile("(?ms)^ *```.*?^ *```")
)

// written are the documents that people write and read in order. Results are others.
func (r *repo) written() (docs []string) {
	for _, doc := range r.documents() {
		if path.Dir(doc) == "." || under(doc, []string{"docs", "deploy"}) {
			docs = append(docs, doc)
		}
	}
	return docs
}

func proseRules() []rule {
	long := strings.Repeat("word ", longestSentence+1)
	return []rule{
		{
			name: "sentences are short", check: checkSentences,
			why:    "a reader takes in one idea at a time; a second condition is another sentence, or a table's row",
			broken: tree{"README.md": "# A\n\nFine.\n\n" + long + "end.\n"},
			want:   "README.md:5: a sentence of 37 words",
			fine: tree{"README.md": "| " + long + "|\n\n```\n" + long + "\n```\n\n- " + long[:100] + "\n- " +
				long[:100] + "\n"},
		},
		{
			name: "pages are short", check: checkPages,
			why: "readers leave a page that they cannot take in; a page answers the question of one reader",
			broken: tree{"README.md": strings.Repeat("x\n", longestReadme+1),
				"docs/a.md":       strings.Repeat("x\n", longestPage+1),
				"ARCHITECTURE.md": strings.Repeat("x\n", 161), "CONTRIBUTING.md": strings.Repeat("x\n", 201),
				"docs/decisions/001-a.md": strings.Repeat("x\n", 61)},
			want: "ARCHITECTURE.md: 161 lines\nCONTRIBUTING.md: 201 lines\nREADME.md: 131 lines\n" +
				"docs/a.md: 201 lines\ndocs/decisions/001-a.md: 61 lines",
			fine: tree{"docs/runbooks.md": strings.Repeat("x\n", longestPage+1),
				"CHANGELOG.md":    strings.Repeat("x\n", 999),
				"CONTRIBUTING.md": strings.Repeat("x\n", longestPage)},
		},
		{
			name: "documents have no dialect", check: checkDialect,
			why:    "many readers have English as a second language",
			broken: tree{"docs/a.md": "A\nIt ends at once.\n"}, want: "docs/a.md:2: at once",
			fine: tree{"docs/a.md": "Those packets end immediately.\n"},
		},
	}
}

// paragraphs calls do with each paragraph or item of a document, as one line, and with its line number.
func paragraphs(text string, do func(line int, paragraph string)) {
	text = anyBlock.ReplaceAllStringFunc(text, func(block string) string {
		return strings.Repeat("\n", strings.Count(block, "\n"))
	})
	var now []string
	began := 0
	end := func() {
		if len(now) > 0 {
			do(began, strings.Join(now, " "))
		}
		now = nil
	}
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "", trimmed[0] == '|', trimmed[0] == '#', trimmed[0] == '<':
			end()
			continue
		case listItem.MatchString(line):
			end()
			trimmed = listItem.ReplaceAllString(line, "")
		}
		if now == nil {
			began = i + 1
		}
		now = append(now, trimmed)
	}
	end()
}

func checkSentences(r *repo) (found []string) {
	for _, doc := range r.written() {
		paragraphs(r.text(doc), func(line int, paragraph string) {
			for paragraph != "" {
				sentence := paragraph
				if at := sentenceEnd.FindStringIndex(paragraph); at != nil {
					sentence = paragraph[:at[1]-1]
				}
				paragraph = paragraph[len(sentence):]
				if n := len(strings.Fields(sentence)); n > longestSentence {
					found = append(found, fmt.Sprintf("%s:%d: a sentence of %d words", doc, line, n))
				}
			}
		})
	}
	return found
}

// mostLines returns how long a document may be, 0 if any length is fine.
func mostLines(doc string) int {
	switch dir := path.Dir(doc); {
	case doc == "README.md":
		return longestReadme
	case doc == "ARCHITECTURE.md":
		return longestArchitecture
	case doc == "docs/runbooks.md": // one section for each alert
		return 0
	case doc == "CONTRIBUTING.md", dir == "docs":
		return longestPage
	case dir == "docs/decisions":
		return longestDecision
	}
	return 0
}

func checkPages(r *repo) (found []string) {
	for _, doc := range r.written() {
		most := mostLines(doc)
		if n := strings.Count(r.text(doc), "\n"); most > 0 && n > most {
			found = append(found, fmt.Sprintf("%s: %d lines, more than %d", doc, n, most))
		}
	}
	return found
}

func checkDialect(r *repo) (found []string) {
	for _, doc := range r.written() {
		for i, line := range strings.Split(r.text(doc), "\n") {
			if phrase := dialect.FindString(line); phrase != "" {
				found = append(found, fmt.Sprintf("%s:%d: %s", doc, i+1, phrase))
			}
		}
	}
	return found
}
