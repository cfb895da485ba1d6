package houserules

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// documents are the files that explain the project. Further ones stand in the folders
// that they are about.
var documents = []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"}

// allDocuments returns every document, those of folders after the others.
func (r *repo) allDocuments() []string {
	all := slices.Clone(documents)
	_ = fs.WalkDir(r.fsys, ".", func(name string, d fs.DirEntry, err error) error { // what cannot be read is not there
		if err == nil && path.Ext(name) == ".md" && !slices.Contains(documents, name) {
			all = append(all, name)
		}
		return nil
	})
	return all
}

// otherPrograms are what the documents may call besides make, go and sluice.
// They are known to people and not checked further.
var otherPrograms = strings.Fields("cat cd chmod conntrack cp curl dig git grep ip ipset iptables-save kill kubectl ls mkdir mv nc perf rm ss sysctl ulimit")

// block is one fenced block of shell commands in a document.
type block struct {
	doc  string
	line int  // of the first command
	run  bool // marked "sh run": TestDocumentsRun executes it
	text string
}

// blocks finds the shell blocks of a document.
func (r *repo) blocks(doc string) []block {
	var list []block
	var open *block
	for i, line := range strings.Split(r.text(doc), "\n") {
		info, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch words := strings.Fields(info); {
		case fence && open != nil:
			if open.text != "" {
				list = append(list, *open)
			}
			open = nil
		case fence && len(words) > 0 && words[0] == "sh":
			open = &block{doc: doc, line: i + 2, run: slices.Contains(words[1:], "run")}
		case fence:
			open = &block{doc: doc} // another language; text stays empty
		case open != nil && open.line > 0:
			open.text += line + "\n"
		}
	}
	return list
}

func documentRules() []rule {
	readme := func(text string, want ...string) example {
		return example{
			files: map[string]string{"README.md": text, "Makefile": "build:\n", "deploy/x.yaml": "", "lb/lb.go": "package lb\n"},
			help:  "  -v, --verbosity int   0 to 9\n      --manifests PATH   folder, as --bind-address\n      --bind-address IP   to listen on (default \"0.0.0.0\")\n",
			want:  want,
		}
	}
	sh := func(command string, want ...string) example { return readme("```sh\n"+command+"\n```\n", want...) }
	table := "## Flags\n\n| flag | default |\n|---|---|\n| `--bind-address` | `0.0.0.0` |\n| `--manifests` | |\n| `-v`, `--verbosity` | |\n"
	return []rule{
		{
			name: "the documents are there", check: checkDocuments,
			why:    "a newcomer looks for them by name",
			broken: []example{{files: map[string]string{"README.md": "x", "ARCHITECTURE.md": "x", "CONTRIBUTING.md": "x", "CHANGELOG.md": "x"}, want: []string{"LICENSE"}}},
		},
		{
			name: "commands in documents exist", check: checkCommands,
			why: "the first command that a reader copies must work",
			broken: []example{
				sh("make", "README.md:2: make without a target"),
				sh("make biuld", "no target biuld"),
				sh("# first\nX=1 make build && sudo bin/sluice --manifest deploy", "README.md:3: sluice has no flag --manifest"),
				sh("bin/sluice -q", "no flag -q"),
				sh("curl -s localhost | jq .", "jq is not a program"),
				sh("cat deploy/y.yaml", "no file deploy/y.yaml"),
				sh("go test ./udp/...", "no file udp"),
				sh("git clone https://github.com/someone/else", "not this repository"),
				readme("Set `--no-such-flag` to 1.\n", "README.md:1: sluice has no flag --no-such-flag"),
				{files: map[string]string{"Makefile": "build:\n", "deploy/a/README.md": "```sh\nmake biuld\n```\n"}, want: []string{"deploy/a/README.md:2: the Makefile has no target biuld"}},
			},
			fine: []example{
				sh("git clone https://github.com/sluice-lb/sluice\ncd sluice\nmake build # now\nsudo bin/sluice \\\n  --manifests=deploy/*.yaml -v 2 &\ngo test -race ./lb/..."),
				readme("Set `--manifests` or `-v`.\n\n```go\njq\n```\n"),
			},
		},
		{
			name: "the table of flags is whole", check: checkFlagTable,
			why: "operators trust the table and do not run --help to see what it left out",
			broken: []example{
				readme(strings.Replace(table, "| `--bind-address` | `0.0.0.0` |\n", "", 1), "sluice has --bind-address"),
				readme(table+"| `--old` | |\n", "README.md:8: sluice has no --old"),
				readme(strings.Replace(table, "0.0.0.0", "::", 1), `README.md:5: --bind-address has the default "0.0.0.0", not "::"`),
				readme(strings.Replace(table, "`--manifests` | |", "`--manifests` | `x` |", 1), `--manifests has the default "", not "x"`),
				readme("# Sluice\n", "no table"),
			},
			fine: []example{readme(table + "\n## Next\n\n| `--old` | |\n")},
		},
		{
			name: "links in documents lead somewhere", check: checkLinks,
			why: "a dead link tells a reader that nobody has looked for a while",
			broken: []example{
				readme("See [that](docs/that.md).\n", "README.md:1: no file docs/that.md"),
				readme("See [that](#that-one).\n\n# This one\n", "no heading"),
				{files: map[string]string{"deploy/README.md": "[this](README.md), [that](deploy/README.md)\n"}, want: []string{"deploy/README.md:1: no file deploy/README.md"}},
			},
			fine: []example{readme("See [lb](lb/lb.go#L1), [us](https://example.com) and [this](#this-one-too).\n\n# This one, too\n")},
		},
	}
}

func checkDocuments(r *repo) []string {
	var found []string
	for _, name := range append(slices.Clone(documents), "LICENSE") {
		if r.text(name) == "" {
			found = append(found, name+": missing")
		}
	}
	return found
}

var (
	helpFlag   = regexp.MustCompile(`(?m)^ +(?:(-\w), )?(--[a-z][\w-]*)(?:.*\(default "?(.*?)"?\))?`)
	inlineFlag = regexp.MustCompile("`(--?[a-z][a-z0-9-]*)")
	tableFlag  = regexp.MustCompile("^\\|[^|]*?`(--[a-z][a-z0-9-]*)[^|]*\\| *(?:`([^`]*)`)?")
	assignment = regexp.MustCompile(`^[A-Za-z_]+=`)
	mdLink     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading    = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notInSlug  = regexp.MustCompile(`[^\w\- ]`)
)

// flag is one flag as sluice --help lists it.
type flag struct{ long, short, byDefault string }

// flags returns the flags that sluice --help lists.
func (r *repo) flags() []flag {
	var list []flag
	for _, m := range helpFlag.FindAllStringSubmatch(r.help, -1) {
		list = append(list, flag{long: m[2], short: m[1], byDefault: m[3]})
	}
	return list
}

// hasFlag reports whether sluice knows a flag; without a program to ask, all are.
func (r *repo) hasFlag(name string) bool {
	return r.help == "" || slices.ContainsFunc(r.flags(), func(f flag) bool { return name == f.long || name == f.short })
}

// checkCommands looks at every command in the shell blocks, and at the flags that
// the prose names in code quotes.
func checkCommands(r *repo) []string {
	var found []string
	for _, doc := range r.allDocuments() {
		for _, b := range r.blocks(doc) {
			text := strings.ReplaceAll(b.text, "\\\n", " ")
			for i, line := range strings.Split(text, "\n") {
				line, _, _ = strings.Cut(" "+line, " #")
				for _, command := range regexp.MustCompile(`\|\||&&|[|;&]`).Split(line, -1) {
					for _, f := range r.checkCommand(strings.Fields(command)) {
						found = append(found, fmt.Sprintf("%s:%d: %s", doc, b.line+i, f))
					}
				}
			}
		}
		if doc == "CHANGELOG.md" {
			continue // it may name what is gone
		}
		for i, line := range strings.Split(r.text(doc), "\n") {
			for _, m := range inlineFlag.FindAllStringSubmatch(line, -1) {
				if strings.HasPrefix(m[1], "--") && !r.hasFlag(m[1]) {
					found = append(found, fmt.Sprintf("%s:%d: sluice has no flag %s", doc, i+1, m[1]))
				}
			}
		}
	}
	return found
}

// checkCommand looks at one command, given as its words.
func (r *repo) checkCommand(words []string) []string {
	for len(words) > 0 && (assignment.MatchString(words[0]) || words[0] == "sudo" || words[0] == "env") {
		words = words[1:]
	}
	if len(words) == 0 {
		return nil
	}
	var found []string
	program, args := strings.TrimPrefix(words[0], "./"), words[1:]
	switch {
	case program == "make":
		named := slices.DeleteFunc(slices.Clone(args), func(a string) bool { return assignment.MatchString(a) || a[0] == '-' })
		if len(named) == 0 {
			found = append(found, "make without a target")
		}
		for _, a := range named {
			if !slices.Contains(r.targets(), a) {
				found = append(found, "the Makefile has no target "+a)
			}
		}
	case program == "sluice" || program == "bin/sluice":
		known := r.hasFlag
		if len(args) > 0 && args[0] == "explain" {
			known = func(name string) bool { return strings.Contains(r.explain, " "+name+" ") || r.explain == "" }
		}
		for _, a := range args {
			if name, _, _ := strings.Cut(a, "="); a[0] == '-' && !known(name) {
				found = append(found, "sluice has no flag "+name)
			}
		}
	case program == "git" && len(args) == 2 && args[0] == "clone":
		if args[1] != "https://"+module {
			found = append(found, args[1]+" is not this repository")
		}
	case program != "go" && !slices.Contains(otherPrograms, program):
		found = append(found, program+" is not a program that the documents may name without a check")
	}
	return append(found, r.missingPaths(args)...)
}

// missingPaths finds the words that name a place in one of our folders where
// there is nothing.
func (r *repo) missingPaths(words []string) []string {
	var found []string
	for _, w := range words {
		if _, value, ok := strings.Cut(w, "="); ok {
			w = value
		}
		p := path.Clean(strings.TrimSuffix(w, "/..."))
		first, _, below := strings.Cut(p, "/")
		ours := slices.Contains(folders, first) && first != "bin" && (below || strings.HasPrefix(w, "./"))
		if !ours {
			continue
		}
		if m, err := fs.Glob(r.fsys, p); err != nil || len(m) == 0 {
			found = append(found, "there is no file "+p)
		}
	}
	return found
}

// checkFlagTable compares the table under "Flags" in the README with --help, both
// ways. A default is compared where the table gives it in code quotes.
func checkFlagTable(r *repo) []string {
	if r.help == "" {
		return nil
	}
	flags := r.flags()
	var found, listed []string
	inTable := false
	for i, line := range strings.Split(r.text("README.md"), "\n") {
		if strings.HasPrefix(line, "#") {
			inTable = strings.HasSuffix(line, "# Flags")
		}
		m := tableFlag.FindStringSubmatch(line)
		if !inTable || m == nil {
			continue
		}
		listed = append(listed, m[1])
		at := slices.IndexFunc(flags, func(f flag) bool { return f.long == m[1] })
		switch {
		case at < 0:
			found = append(found, fmt.Sprintf("README.md:%d: sluice has no %s", i+1, m[1]))
		case m[2] != "" && m[2] != flags[at].byDefault:
			found = append(found, fmt.Sprintf("README.md:%d: %s has the default %q, not %q", i+1, m[1], flags[at].byDefault, m[2]))
		}
	}
	if len(listed) == 0 {
		return []string{"README.md: no table of flags under a heading Flags"}
	}
	for _, f := range flags {
		if !slices.Contains(listed, f.long) {
			found = append(found, "README.md: sluice has "+f.long+", the table under Flags does not")
		}
	}
	return found
}

// checkLinks follows the links of the documents to files and headings of ours.
func checkLinks(r *repo) []string {
	var found []string
	for _, doc := range r.allDocuments() {
		text := r.text(doc)
		var slugs []string
		for _, m := range heading.FindAllStringSubmatch(text, -1) {
			slug := notInSlug.ReplaceAllString(strings.ToLower(m[1]), "")
			slugs = append(slugs, strings.ReplaceAll(slug, " ", "-"))
		}
		for i, line := range strings.Split(text, "\n") {
			for _, m := range mdLink.FindAllStringSubmatch(line, -1) {
				file, anchor, _ := strings.Cut(m[1], "#")
				switch {
				case strings.Contains(m[1], "://"):
				case file == "" && !slices.Contains(slugs, anchor):
					found = append(found, fmt.Sprintf("%s:%d: no heading #%s", doc, i+1, anchor))
				case file != "" && !r.exists(path.Join(path.Dir(doc), file)):
					found = append(found, fmt.Sprintf("%s:%d: no file %s", doc, i+1, file))
				}
			}
		}
	}
	return found
}
