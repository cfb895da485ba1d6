package houserules

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// block is one fenced block of shell commands in a document.
type block struct {
	line int  // of the first command
	run  bool // marked "sh run": TestDocumentsRun executes it; TestDocuments of e2e those marked "sh node"
	text string
}

var (
	shellBlock = regexp.MustCompile("(?ms)^ *```sh(?:( run)| node)?\n(.*?)^ *```")
	fence      = regexp.MustCompile("^ *```(.*)$")
	annotation = regexp.MustCompile(`\bsluice\.io/[a-z][a-z-]*`)
	metric     = regexp.MustCompile(`\b(?:sluice|kubeproxy)_[a-z][a-z0-9_]*[a-z0-9]\b`)
	notRun     = regexp.MustCompile(`^ *<!-- not run: \S.* -->$`)
	separator  = regexp.MustCompile(`\|\||&&|[|;&]`)
	helpFlag   = regexp.MustCompile(`(?m)^ +(?:(-\w), )?(--?[a-z][\w-]*)`)
	inlineFlag = regexp.MustCompile("`(--[a-z][a-z0-9-]*)")
	assignment = regexp.MustCompile(`^[A-Za-z_]+=`)
	mdLink     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading    = regexp.MustCompile(`(?m)^#+ (.+)$`)
	commandAt  = regexp.MustCompile(`(?m)^## sluice ([a-z]+)$`)
	notInSlug  = regexp.MustCompile(`[^\w\- ]`)
)

// documents returns every document, without test data, templates of documents and the build's output.
func (r *repo) documents() []string {
	var all []string
	_ = fs.WalkDir(r.fsys, ".", func(name string, _ fs.DirEntry, err error) error { // what cannot be read is not there
		if name == "bin" || name == "dist" {
			return fs.SkipDir
		}
		if err == nil && path.Ext(name) == ".md" && !strings.Contains(name, "testdata/") &&
			!strings.Contains(name, "/templates/") {
			all = append(all, name)
		}
		return nil
	})
	return all
}

// blocks finds the shell blocks of a document.
func (r *repo) blocks(doc string) []block {
	var list []block
	text := r.text(doc)
	for _, m := range shellBlock.FindAllStringSubmatchIndex(text, -1) {
		list = append(list, block{strings.Count(text[:m[4]], "\n") + 1, m[2] >= 0, text[m[4]:m[5]]})
	}
	return list
}

func documentRules() []rule {
	commands := "## sluice status\n\n  -o, --output FORM   x\n\n## sluice events\n\n      --manifests PATH   x\n"
	help := "  -v, --verbosity int   0 to 9\n      --manifests PATH   folder, as --bind-address\n"
	return []rule{
		{
			name: "commands in documents exist", check: checkCommands,
			why: "the first command that a reader copies must work",
			broken: tree{"help": help, "Makefile": "\nbuild:\n", "deploy/x.yaml": "", "docs/reference/commands.md": commands, "README.md": "```sh\nmake\n# first\n" +
				"X=1 make biuld && sudo bin/sluice --manifest deploy\ncat deploy/y.yaml\n```\nSet `--no-such-flag`.\n",
				"docs/runbooks.md": "```sh\nsluice stats --all\nsluice status --manifests x\n```\n"},
			want: "README.md:2: make without a target\nREADME.md:4: the Makefile has no target biuld\n" +
				"README.md:4: sluice has no flag --manifest\nREADME.md:5: there is no file deploy/y.yaml\n" +
				"README.md:7: sluice has no flag --no-such-flag\ndocs/runbooks.md:2: sluice has no command stats\n" +
				"docs/runbooks.md:2: sluice has no flag --all\ndocs/runbooks.md:3: sluice status has no flag --manifests",
			fine: tree{"help": help, "Makefile": "\nbuild:\n", "deploy/x.yaml": "", "lb/lb.go": "package lb\n", "docs/reference/commands.md": commands, "README.md": "```sh\n" +
				"sudo sluice events --manifests x\nsluice completion zsh\nmake build # now\nbin/sluice \\\n  --manifests=deploy/*.yaml -v 2 &\ngo test ./lb/...\n```\nSet `--manifests` or `-v`.\n"},
		},
		{
			name: "shell blocks run, or say why not", check: checkRuns,
			why: "a command that no test runs is wrong after the next change",
			broken: tree{"docs/a.md": "```sh\nls\n```\n\n<!-- not run: -->\n```sh\nls\n```\n```\nls\n```\n",
				"README.md": "```console\nls\n```\n\n```sh node\nls\n```\n"},
			want: "README.md:1: a block of console: call it sh\nREADME.md:5: TestDocuments\ndocs/a.md:1: no test runs\ndocs/a.md:6: no test runs\n" +
				"docs/a.md:9: a block without a language",
			fine: tree{"docs/a.md": "```sh run\nls\n```\n\n1. x\n\n   <!-- not run: needs a cluster -->\n   ```sh\n   ls\n" +
				"   ```\n\n```sh node\nls\n```\n\n```text\nls\n```\n", "CONTRIBUTING.md": "```sh\nls\n```\n"},
		},
		{
			name: "annotations and metrics in documents exist", check: checkNames,
			why: "a name that is gone requests nothing, and shows nothing",
			broken: tree{"docs/reference/annotations.md": "`sluice.io/hold`", "docs/reference/metrics.md": "`sluice_x_seconds`",
				"README.md": "Set `sluice.io/drain`.\nSee `sluice_y_total`.\n"},
			want: "README.md:1: there is no sluice.io/drain\nREADME.md:2: there is no sluice_y_total",
			fine: tree{"docs/reference/annotations.md": "`sluice.io/hold`", "docs/reference/metrics.md": "`sluice_x_seconds`",
				"README.md": "sluice.io/hold: 5s, rate(sluice_x_seconds_count[5m]), sluice_x_..., sluice_0.1.0_amd64.deb\n"},
		},
		{
			name: "figures beside a peer name its version", check: checkPeers,
			why: "a lead over an old version says nothing about today's",
			broken: tree{"bench/results/a.md": "# A\n\n| HAProxy | nginx 1.30.6 |\n|---|---|\n| 1 | 2 |\n",
				"docs/decisions/a.md": "kube-proxy 1.36 is\n\n| kube-proxy | 1 |\n"},
			want: "bench/results/a.md:3: HAProxy without its version\ndocs/decisions/a.md:3: kube-proxy without its version",
			fine: tree{"bench/results/a.md": "HAProxy version 3.2.26.\n\n| haproxy |\n|---|\n| 1 |\n",
				"docs/decisions/a.md": "As HAProxy does.\n", "docs/a.md": "| nginx |\n|---|\n"},
		},
		{
			name: "links in documents lead somewhere", check: checkLinks,
			why: "a dead link shows that a document is not kept",
			broken: tree{"README.md": "See [that](docs/that.md).\nSee [that](#that-one).\n\n# This one\n",
				"deploy/README.md": "[this](README.md), [that](deploy/README.md), [there](../README.md#that-one)\n"},
			want: "README.md:1: no file docs/that.md\nREADME.md:2: README.md has no heading\n" +
				"deploy/README.md:1: no file deploy/README.md\ndeploy/README.md:1: README.md has no heading #that-one",
			fine: tree{"lb/lb.go": "package lb\n", "README.md": "See [lb](lb/lb.go#L1), [us](https://example.com) and " +
				"[this](#this-one-too).\n\n# This one, too\n", "docs/a.md": "[this](../README.md#this-one-too)\n"},
		},
	}
}

// hasFlag reports whether sluice, or one of its commands, knows a flag.
func (r *repo) hasFlag(name string) bool {
	return r.help == "" || flagIn(r.help, name) || flagIn(r.text(commandsPage), name)
}

// flagIn reports whether a help text has a flag.
func flagIn(help, name string) bool {
	return slices.ContainsFunc(helpFlag.FindAllStringSubmatch(help, -1), func(m []string) bool {
		return name == m[1] || name == m[2]
	})
}

// commandsPage has the help texts of all commands but the library's; a test keeps it true.
const commandsPage = "docs/reference/commands.md"

// command returns the help text of a command of sluice, if the page has it, and whether there is one.
func (r *repo) command(name string) (help string, ok bool) {
	page := r.text(commandsPage)
	for _, m := range commandAt.FindAllStringSubmatchIndex(page, -1) {
		if page[m[2]:m[3]] == name {
			help, _, _ = strings.Cut(page[m[1]:], "\n## ")
			return help, true
		}
	}
	return "", page == "" || name == "help" || name == "completion"
}

// checkCommands looks at every command in the shell blocks, and at the flags that
// the prose names in code quotes.
func checkCommands(r *repo) []string {
	var found []string
	for _, doc := range r.documents() {
		if doc == "CHANGELOG.md" {
			continue // it may name what is gone
		}
		for _, b := range r.blocks(doc) {
			text := strings.ReplaceAll(b.text, "\\\n", " ")
			for i, line := range strings.Split(text, "\n") {
				line, _, _ = strings.Cut(" "+line, " #")
				for _, command := range separator.Split(line, -1) {
					for _, f := range r.checkCommand(strings.Fields(command)) {
						found = append(found, fmt.Sprintf("%s:%d: %s", doc, b.line+i, f))
					}
				}
			}
		}
		for i, line := range strings.Split(r.text(doc), "\n") {
			for _, m := range inlineFlag.FindAllStringSubmatch(line, -1) {
				if !r.hasFlag(m[1]) {
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
	program, targets, own := path.Base(words[0]), 0, ""
	if program == "sluice" && len(words) > 1 && words[1][0] != '-' {
		var ok bool
		if own, ok = r.command(words[1]); !ok {
			found = append(found, "sluice has no command "+words[1])
		}
	}
	for _, w := range words[1:] {
		name, value, assigned := strings.Cut(w, "=")
		switch {
		case program == "sluice" && w[0] == '-' && own != "" && !flagIn(own, name):
			found = append(found, "sluice "+words[1]+" has no flag "+name)
		case program == "sluice" && w[0] == '-' && own == "" && !r.hasFlag(name):
			found = append(found, "sluice has no flag "+name)
		case program == "make" && w[0] != '-' && !assigned:
			targets++
			if !strings.Contains(r.text("Makefile"), "\n"+w+":") {
				found = append(found, "the Makefile has no target "+w)
			}
		}
		if assigned {
			w = value
		}
		p := path.Clean(strings.TrimSuffix(w, "/..."))
		first, _, below := strings.Cut(p, "/")
		if m, _ := fs.Glob(r.fsys, p); len(m) == 0 && below && first != "bin" && first != "dist" && slices.Contains(folders, first) {
			found = append(found, "there is no file "+p)
		}
	}
	if program == "make" && targets == 0 {
		found = append(found, "make without a target")
	}
	return found
}

// checkRuns looks at what opens a block in the documents of readers.
func checkRuns(r *repo) (found []string) {
	for _, doc := range r.documents() {
		if doc != "README.md" && !under(doc, []string{"docs", "deploy"}) {
			continue
		}
		before, inside := "", false
		for i, line := range strings.Split(r.text(doc), "\n") {
			m := fence.FindStringSubmatch(line)
			if m != nil {
				inside = !inside
			}
			if m != nil && inside {
				problem := ""
				switch m[1] {
				case "":
					problem = "a block without a language"
				case "bash", "console", "shell":
					problem = "a block of " + m[1] + ": call it sh"
				case "sh node":
					if !under(doc, []string{"docs"}) {
						problem = "TestDocuments of e2e runs blocks of docs only"
					}
				case "sh":
					if !notRun.MatchString(before) {
						problem = "no test runs this block: mark it sh run or sh node, or give the reason above it: <!-- not run: ... -->"
					}
				}
				if problem != "" {
					found = append(found, fmt.Sprintf("%s:%d: %s", doc, i+1, problem))
				}
			}
			before = line
		}
	}
	return found
}

// checkNames compares the names in documents with the pages that have all.
func checkNames(r *repo) (found []string) {
	annotations, metrics := r.text("docs/reference/annotations.md"), r.text("docs/reference/metrics.md")
	known := func(name string) bool {
		for _, part := range []string{"", "_bucket", "_count", "_sum"} {
			of := "`" + strings.TrimSuffix(name, part) + "`"
			if strings.Contains(annotations, of) || strings.Contains(metrics, of) {
				return true
			}
		}
		return strings.Contains(metrics, "`"+name+"_") // the first words of several, before dots
	}
	for _, doc := range r.documents() {
		if doc == "CHANGELOG.md" || under(doc, []string{"bench/results"}) {
			continue // they may name what is gone
		}
		for i, line := range strings.Split(r.text(doc), "\n") {
			for _, name := range append(annotation.FindAllString(line, -1), metric.FindAllString(line, -1)...) {
				if !known(name) {
					found = append(found, fmt.Sprintf("%s:%d: there is no %s", doc, i+1, name))
				}
			}
		}
	}
	return found
}

// peers are the programs that Sluice is measured beside.
var peers = []string{"HAProxy", "nginx", "kube-proxy"}

// checkPeers looks for tables of measurements in documents that do not say which version of a peer was measured.
func checkPeers(r *repo) (found []string) {
	for _, doc := range r.documents() {
		if !under(doc, []string{"bench/results", "docs/decisions"}) {
			continue
		}
		text := r.text(doc)
		for _, peer := range peers {
			if regexp.MustCompile(`(?i)` + peer + `[^|]{0,40}\d+\.\d+\.\d+`).MatchString(text) {
				continue
			}
			for i, line := range strings.Split(text, "\n") {
				if strings.HasPrefix(line, "|") && strings.Contains(strings.ToLower(line), strings.ToLower(peer)) {
					found = append(found, fmt.Sprintf("%s:%d: %s without its version", doc, i+1, peer))
				}
			}
		}
	}
	return found
}

// slugs returns the anchors of a document's headings.
func (r *repo) slugs(doc string) (all []string) {
	for _, m := range heading.FindAllStringSubmatch(r.text(doc), -1) {
		slug := notInSlug.ReplaceAllString(strings.ToLower(m[1]), "")
		all = append(all, strings.ReplaceAll(slug, " ", "-"))
	}
	return all
}

// checkLinks follows the links of the documents to files and headings of ours.
func checkLinks(r *repo) []string {
	var found []string
	for _, doc := range r.documents() {
		for i, line := range strings.Split(r.text(doc), "\n") {
			for _, m := range mdLink.FindAllStringSubmatch(line, -1) {
				file, anchor, _ := strings.Cut(m[1], "#")
				target := doc
				if file != "" {
					target = path.Join(path.Dir(doc), file)
				}
				switch {
				case strings.Contains(m[1], "://"):
				case !r.exists(target):
					found = append(found, fmt.Sprintf("%s:%d: no file %s", doc, i+1, file))
				case anchor != "" && path.Ext(target) == ".md" && !slices.Contains(r.slugs(target), anchor):
					found = append(found, fmt.Sprintf("%s:%d: %s has no heading #%s", doc, i+1, target, anchor))
				}
			}
		}
	}
	return found
}

// TestDocumentsRun executes the command blocks that the documents mark with "sh run",
// each in its own copy of the repository as a reader would have it after cloning.
func TestDocumentsRun(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program anew; runs without -short")
	}
	r := &repo{fsys: os.DirFS(root)}
	ran := 0
	for _, doc := range r.documents() {
		for _, b := range r.blocks(doc) {
			if !b.run {
				continue
			}
			ran++
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			dir := t.TempDir()
			checkout := exec.CommandContext(ctx, "git", "checkout-index", "--all", "--prefix="+dir+"/")
			checkout.Dir = root
			if out, err := checkout.CombinedOutput(); err != nil {
				t.Skipf("git cannot copy the files of this tree: %v: %s", err, out)
			}
			cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", b.text)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s:%d: %v\n%s\n%s", doc, b.line, err, b.text, out)
			}
		}
	}
	if ran == 0 {
		t.Error("no document marks a block with sh run")
	}
}
