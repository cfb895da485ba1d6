package reference

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"strings"
	"text/template"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/events"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/metrics"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/command"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/handover"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/conditions"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/policies"
	"github.com/sluice-lb/sluice/lb"
)

//go:embed templates/*.md
var templates embed.FS

// header is the first line of a page.
const header = "<!-- Written by make docs from cmd/sluice/internal/reference/templates/%s. -->\n"

// Troubleshoot is the page that has codes between two lines, and is not written otherwise.
const (
	Troubleshoot = "docs/troubleshoot.md"
	codesBegin   = "<!-- make docs writes this table. -->\n"
	codesEnd     = "<!-- The table ends. -->\n"
)

// Pages returns the text of every page by its path in the repository, which fsys is.
func Pages(fsys fs.FS) (map[string]string, error) {
	all, err := template.New("").Funcs(tables(fsys)).ParseFS(templates, "templates/*.md")
	if err != nil {
		return nil, fmt.Errorf("read templates: %w", err)
	}
	pages := make(map[string]string)
	for _, t := range all.Templates() {
		var out bytes.Buffer
		if err := t.Execute(&out, nil); err != nil {
			return nil, fmt.Errorf("write page %s: %w", t.Name(), err)
		}
		if text := strings.TrimSpace(out.String()) + "\n"; t.Name() == "codes.md" {
			pages[Troubleshoot], err = withCodes(fsys, text)
		} else {
			pages["docs/reference/"+t.Name()] = fmt.Sprintf(header, t.Name()) + text
		}
		if err != nil {
			return nil, err
		}
	}
	return pages, nil
}

// tables are what templates can call.
func tables(fsys fs.FS) template.FuncMap {
	return template.FuncMap{
		"code": code, "codes": codes, "cell": cell, "answer": answer, "trim": strings.TrimSpace,
		"plain": func(text string) string { return strings.ReplaceAll(text, "`", "") },
		"flags": config.Flags, "fields": config.Fields, "policies": policies.All, "ends": ends,
		"metrics":  described,
		"commands": command.Helps, "kinds": events.Kinds,
		"conditions": func() any { return conditions.Reasons },
		"journal":    func() any { return journal.Reasons },
		"resources":  api.Resources,
		"params":     func() any { return api.Params },
		"types":      func() ([]object, error) { return objects(fsys) },
	}
}

// described returns all metrics.
func described() ([]metrics.Description, error) {
	handOvers := handover.NewMetrics()
	handOvers.Took() // makes the series of its time
	return metrics.Describe(handOvers)
}

// code puts text into backquotes, if there is any.
func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

// codes is code for a list.
func codes(list []string, prefix string) string {
	var out []string
	for _, text := range list {
		out = append(out, code(prefix+text))
	}
	return strings.Join(out, ", ")
}

// cell is text for a cell of a table. A row without it is a row that says nothing.
func cell(text string) (string, error) {
	if text == "" {
		return "", fmt.Errorf("a row has no meaning")
	}
	return strings.ReplaceAll(text, "|", `\|`), nil
}

// ends are all ends of connections.
func ends() (all []lb.End) {
	for e := lb.Normal; e <= lb.HalfTimeout; e++ {
		all = append(all, e)
	}
	return all
}

// withCodes returns the page of troubles with another table of codes.
func withCodes(fsys fs.FS, table string) (string, error) {
	text, err := fs.ReadFile(fsys, Troubleshoot)
	if err != nil {
		return "", fmt.Errorf("read page: %w", err)
	}
	before, rest, begins := strings.Cut(string(text), codesBegin)
	_, after, ok := strings.Cut(rest, codesEnd)
	if !begins || !ok {
		return "", fmt.Errorf("%s has no lines %q and %q", Troubleshoot, codesBegin, codesEnd)
	}
	return before + codesBegin + "\n" + table + "\n" + codesEnd + after, nil
}
