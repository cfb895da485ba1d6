package houserules

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
)

// folders are the rooms of the repository; ARCHITECTURE.md says what each is for.
// bin is where builds land; it is not committed.
var folders = []string{
	"affinity", "bench", "bin", "cmd", "deploy", "internal", "kernelmodes", "lb", "redirect", "sctp", "tcp", "udp",
	".ci", ".git",
}

func treeRules() []rule {
	file := func(name, content string, want ...string) example {
		return example{files: map[string]string{name: content}, want: want}
	}
	return []rule{
		{
			name: "top-level folders are the rooms", check: checkFolders,
			why: "a folder for what fits nowhere (util, common, types, pkg) is where a design goes to die",
			broken: []example{
				file("util/a.txt", "", "util: "),
				file(".idea/a.txt", "", ".idea: "),
				file("main.go", "package main\n", "main.go: "),
			},
			fine: []example{file("lb/a.txt", ""), file("README.md", "")},
		},
		{
			name: "go.mod is plain", check: checkGoMod,
			why: "a replace or a commit instead of a release hides from users what they build",
			broken: []example{
				file("go.mod", "module x\n\nreplace a.com/b => ../b\n", "go.mod:3"),
				file("go.mod", "require a.com/b v0.0.0-20200101000000-abcdef012345\n", "not a release"),
				file("go.mod", "require (\n\ta.com/b v1.2.4-0.20200101000000-abcdef012345\n)\n", "not a release"),
			},
			fine: []example{file("go.mod", "module x\n\ngo 1.26.0\n\nrequire (\n\ta.com/b v1.2.3\n\ta.com/c v0.0.0-20200101000000-abcdef012345 // indirect\n)\n")},
		},
		{
			name: "the changelog can be read", check: checkChangelog,
			why: "operators read it before an upgrade: by version, what was added, changed or fixed, in sentences",
			broken: []example{
				file("CHANGELOG.md", "# News\n", `want "# Changelog"`, "no version"),
				file("CHANGELOG.md", "# Changelog\n\n## Next\n", "CHANGELOG.md:3: a version"),
				file("CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n### Stuff\n\n- A thing.\n", "CHANGELOG.md:5: a heading"),
				file("CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n- A thing.\n", "outside"),
				file("CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n### Added\n\n- a thing\n", "not a sentence"),
				file("CHANGELOG.md", "# Changelog\n\n## 1.0.0 - 2026-01-02\n\n## Unreleased\n", "Unreleased comes first"),
			},
			fine: []example{file("CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n### Added\n\n- A thing that is\n  told on two lines.\n- `--flag` does it.\n\n## 1.0.0 - 2026-01-02\n\n### Fixed\n\n- It works.\n")},
		},
		{
			name: "make targets explain themselves", check: checkMakefile,
			why: "make help is how a newcomer finds the way, and CI must run what everybody runs",
			broken: []example{
				file("Makefile", "build:\n\tgo build\n", "build has no ## comment", "build is not .PHONY"),
				file("Makefile", ".PHONY: lint\nlint: ## check\n\tgo run a.com/b@latest ./...\n", "@latest"),
				file("Makefile", "TOOL := a.com/b@master\n", "@master"),
				file(".ci/run", "make verify\n", "not executable"),
				file(".ci/run*", "make test\n", "does not run make verify"),
			},
			fine: []example{{files: map[string]string{
				"Makefile": "TOOL := a.com/b@v1.2.3-rc.1\nOTHER := a.com/c@v0.0.0-20200101000000-abcdef012345\n\n.PHONY: build verify\nbuild: ## build\n\tgo build\n\nbin/x: y\n\tcp y $@\n\nverify: build ## all\n",
				".ci/run*": "exec make verify\n",
			}}},
		},
	}
}

func checkFolders(r *repo) []string {
	entries, err := fs.ReadDir(r.fsys, ".")
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	for _, e := range entries {
		switch {
		case e.IsDir() && !slices.Contains(folders, e.Name()):
			found = append(found, e.Name()+": not a room of this repository; put the code where its subject lives")
		case strings.HasSuffix(e.Name(), ".go"):
			found = append(found, e.Name()+": no Go file lies in the root; the program is cmd/sluice")
		}
	}
	return found
}

var (
	modDirective   = regexp.MustCompile(`^(replace|exclude|retract|toolchain)\b`)
	pseudoVersion  = regexp.MustCompile(` v\S*[-.]\d{14}-[0-9a-f]{12}`)
	versionHeading = regexp.MustCompile(`^## (Unreleased|\d+\.\d+\.\d+\S* - \d{4}-\d{2}-\d{2})$`)
	changeHeading  = regexp.MustCompile(`^### (Added|Changed|Deprecated|Removed|Fixed|Security)$`)
	makeTarget     = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):([^=\n]*)$`)
	modulePin      = regexp.MustCompile(`[\w.-]+\.[a-z]+/[\w./-]+@(\S+)`)
	exactVersion   = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[\w.-]+)?$`) // or a commit of what is never released
)

func checkGoMod(r *repo) []string {
	var found []string
	for i, line := range strings.Split(r.text("go.mod"), "\n") {
		if m := modDirective.FindString(line); m != "" {
			found = append(found, fmt.Sprintf("go.mod:%d: a %s directive", i+1, m))
		}
		if pseudoVersion.MatchString(line) && !strings.Contains(line, "// indirect") {
			found = append(found, fmt.Sprintf("go.mod:%d: %s is not a release", i+1, strings.TrimSpace(line)))
		}
	}
	return found
}

// checkChangelog wants headings as keepachangelog.com has them, and under them
// list items that are sentences.
func checkChangelog(r *repo) []string {
	text := r.text("CHANGELOG.md")
	if text == "" {
		return nil // another rule lists the files that must be there
	}
	var found []string
	versions, change := 0, false
	add := func(line int, format string, args ...any) {
		found = append(found, fmt.Sprintf("CHANGELOG.md:%d: ", line)+fmt.Sprintf(format, args...))
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if lines[0] != "# Changelog" {
		add(1, "want %q first", "# Changelog")
	}
	for i, line := range lines {
		switch {
		case strings.HasPrefix(line, "## "):
			if !versionHeading.MatchString(line) {
				add(i+1, "a version reads ## Unreleased or ## 1.2.3 - 2026-01-31")
			}
			if versions > 0 && line == "## Unreleased" {
				add(i+1, "Unreleased comes first")
			}
			versions++
			change = false
		case strings.HasPrefix(line, "### "):
			if !changeHeading.MatchString(line) {
				add(i+1, "a heading is Added, Changed, Deprecated, Removed, Fixed or Security")
			}
			change = true
		case strings.HasPrefix(line, "- "):
			if !change {
				add(i+1, "an entry outside Added, Changed and so on")
			} else if !sentence(item(lines[i:])) {
				add(i+1, "the entry is not a sentence: a capital or `code` first, a full stop last")
			}
		}
	}
	if versions == 0 {
		add(1, "no version")
	}
	return found
}

// item joins a list item with its continuation lines, which are indented.
func item(lines []string) string {
	text := strings.TrimPrefix(lines[0], "- ")
	for _, l := range lines[1:] {
		if !strings.HasPrefix(l, "  ") {
			break
		}
		text += " " + strings.TrimSpace(l)
	}
	return text
}

func sentence(s string) bool {
	first := s[:1]
	return strings.HasSuffix(s, ".") && (first == "`" || first == "*" || first != strings.ToLower(first))
}

// targets returns the names of the Makefile's targets, in order.
func (r *repo) targets() []string {
	var names []string
	for _, m := range makeTarget.FindAllStringSubmatch(r.text("Makefile"), -1) {
		names = append(names, m[1])
	}
	return names
}

func checkMakefile(r *repo) []string {
	var found []string
	text := r.text("Makefile")
	phony := ""
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		if rest, ok := strings.CutPrefix(line, ".PHONY:"); ok {
			phony += rest
		}
	}
	for _, m := range makeTarget.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(m[2], "## ") {
			found = append(found, fmt.Sprintf("Makefile: %s has no ## comment for make help", m[1]))
		}
		if !slices.Contains(strings.Fields(phony), m[1]) {
			found = append(found, fmt.Sprintf("Makefile: %s is not .PHONY", m[1]))
		}
	}
	for _, m := range modulePin.FindAllStringSubmatch(text, -1) {
		if !exactVersion.MatchString(m[1]) {
			found = append(found, fmt.Sprintf("Makefile: @%s is not one exact version", m[1]))
		}
	}
	if info, err := fs.Stat(r.fsys, ".ci/run"); err == nil {
		if info.Mode()&0o111 == 0 {
			found = append(found, ".ci/run: not executable")
		} else if !strings.Contains(r.text(".ci/run"), "make verify") {
			found = append(found, ".ci/run: does not run make verify")
		}
	}
	return found
}
