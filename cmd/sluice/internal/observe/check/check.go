package check

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/cli"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/conditions"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kube"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kubeapi"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/manifest"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/policies"
	"github.com/sluice-lb/sluice/lb"
)

const usage = `Checks a configuration and manifests as a start reads them, and serves nothing.

Usage:
  sluice check [PATH...] [--manifests PATH] [--config FILE] [flags of a start]

It takes all flags of a start; PATH stands for --manifests PATH. It needs no root and changes nothing. The exit
status is 1 if a start would refuse or reject something, else 0.

      --strict          exit with 1 for warnings, too
  -o, --output FORM     text or json
  -h, --help            print this help and exit
`

// Mistake is one thing that is wrong.
type Mistake struct {
	File    string `json:"file,omitempty"` // none: it is in a flag
	Line    int    `json:"line,omitempty"` // 0: the whole file is meant
	Field   string `json:"field,omitempty"`
	Warning bool   `json:"warning"` // a start ignores it; else a start refuses or rejects it
	Reason  string `json:"reason"`  // a word for programs
	Problem string `json:"problem"` // what is wrong, and what to do
}

// text returns "file:line: problem".
func (m *Mistake) text() string {
	where := m.File
	if m.Line > 0 {
		where = fmt.Sprintf("%s:%d", where, m.Line)
	}
	if where != "" {
		where += ": "
	}
	if m.Warning {
		where += "warning: "
	}
	return where + m.Problem
}

// Report is all that was found.
type Report struct {
	Mistakes []Mistake `json:"mistakes"`
	Errors   int       `json:"errors"`
	Warnings int       `json:"warnings"`
	Files    int       `json:"files"`
	Services int       `json:"services"` // ports of Services
}

func (r *Report) add(m Mistake) {
	if slices.Contains(r.Mistakes, m) {
		return // both families, and all ports of a Service, have the same
	}
	if r.Mistakes = append(r.Mistakes, m); m.Warning {
		r.Warnings++
	} else {
		r.Errors++
	}
}

// request is what the command was asked.
type request struct {
	help, strict bool
	form         string
	rest         []string // flags of a start
}

// read takes the flags of the command out of args.
func read(args []string) (q request, err error) {
	q.form = "text"
	paths := true // until the first flag of a start, which may have a value
	for i := 0; i < len(args); i++ {
		arg := args[i]
		name, value, given := strings.Cut(arg, "=")
		switch {
		case arg == "-h" || arg == "--help":
			q.help = true
		case arg == "--strict":
			q.strict = true
		case (name == "-o" || name == "--output") && given:
			q.form = value
		case name == "-o" || name == "--output":
			if i++; i == len(args) {
				return q, fmt.Errorf("%s needs a value: give text or json", name)
			}
			q.form = args[i]
		case paths && arg != "" && arg[0] != '-':
			q.rest = append(q.rest, "--manifests", arg)
		default:
			paths = false
			q.rest = append(q.rest, arg)
		}
	}
	if q.form != "text" && q.form != "json" {
		return q, fmt.Errorf("--output %q is unknown: give text or json", q.form)
	}
	return q, nil
}

// Run is the subcommand. It writes what it finds to stdout; the error says how much that is.
func Run(args []string, stdout io.Writer) error {
	q, err := read(args)
	if err != nil {
		return err
	}
	if q.help {
		_, err := io.WriteString(stdout, usage)
		return err
	}
	r := Of(q.rest)
	if q.form == "json" {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		err = e.Encode(r)
	} else {
		err = r.print(stdout)
	}
	if err != nil {
		return err
	}
	if r.Errors > 0 || q.strict && r.Warnings > 0 {
		return fmt.Errorf("%s, %s", counted(r.Errors, "error"), counted(r.Warnings, "warning"))
	}
	return nil
}

func (r *Report) print(w io.Writer) error {
	for i := range r.Mistakes {
		if _, err := fmt.Fprintln(w, cli.Lines(r.Mistakes[i].text())); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "checked %s and %s: %s, %s\n", counted(r.Files, "file"),
		counted(r.Services, "Service port"),
		counted(r.Errors, "error"), counted(r.Warnings, "warning"))
	return err
}

func counted(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// Of checks what a start with these flags would read.
func Of(args []string) Report {
	r := Report{Mistakes: []Mistake{}}
	c, err := config.Parse(args)
	for _, e := range each(err) {
		r.add(Mistake{File: c.File, Reason: "ConfigurationInvalid", Problem: e.Error()})
	}
	for _, text := range c.Warnings {
		r.add(Mistake{File: c.File, Warning: true, Reason: "ConfigurationIgnored", Problem: text})
	}
	forPod := c.File != "" && c.Document.ClientConnection.Kubeconfig == "" && c.Source.Master == ""
	switch {
	case !c.FromAPI():
		r.manifests(&c)
	case err == nil && !forPod: // a file that names no API server is for a pod, whose service account does
		if _, err := kubeapi.RESTConfig(c.Document.ClientConnection, c.Source.Master); err != nil {
			r.add(Mistake{Reason: "ConfigurationInvalid", Problem: err.Error()})
		}
	}
	return r
}

// each returns the errors that were joined; none for nil.
func each(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// manifests checks files and what they come to.
func (r *Report) manifests(c *config.Config) {
	loader := &manifest.Loader{Paths: c.Source.Manifests}
	result, _ := loader.Load()
	r.Files = result.Files
	for _, list := range [][]*manifest.Error{result.Problems, result.Warnings} {
		for _, e := range list {
			m := Mistake{File: e.File, Line: e.Line, Field: e.Field, Reason: conditions.ManifestRejected,
				Problem: e.Reason}
			if m.Warning = !slices.Contains(result.Problems, e); m.Warning {
				m.Reason = conditions.ManifestWarning
			}
			r.add(m)
		}
	}
	n := &c.Node
	node := lb.Node{PodCIDRs: n.Pods(), Own: c.Document.Own()}
	converted := new(kube.Converter).Convert(result.Objects, kube.Options{ServiceProxyName: c.Source.ServiceProxyName,
		Whole: true, Facts: kube.Facts{NodeName: n.Name, Zone: n.Zone, Node: node}})
	for _, of := range converted.Findings {
		for i := range of.List {
			f := &of.List[i]
			file, line := loader.Place(f.Kind, of.Service.Namespace, f.Name, f.Field)
			r.add(Mistake{File: file, Line: line, Field: f.Field, Warning: true, Reason: f.Reason,
				Problem: f.Describe(of.Service.Namespace)})
		}
	}
	table, err := lb.NewTable(converted.Services.AppendTo(nil), converted.Facts.Node)
	for _, e := range each(err) {
		r.add(Mistake{Warning: true, Reason: "AddressTaken", Problem: e.Error()})
	}
	mode, _ := agent.ParsePath(cmp.Or(c.DataPath.Mode, config.ModeUserspace)) // unknown: that of winuserspace
	r.Services = table.Len()
	for _, s := range table.Services() {
		r.service(loader, s, mode)
	}
}

// service checks what a data path lacks of what a Service requests.
func (r *Report) service(loader *manifest.Loader, s *lb.Service, mode agent.Path) {
	add := func(reason, field, format string, args ...any) {
		file, line := loader.Place("Service", s.ID.Namespace, s.ID.Name, field)
		r.add(Mistake{File: file, Line: line, Field: field, Warning: true, Reason: reason,
			Problem: fmt.Sprintf("Service %s/%s: ", s.ID.Namespace, s.ID.Name) + fmt.Sprintf(format, args...)})
	}
	choice := agent.Choose(s, mode)
	if requested := s.Requests().DataPath; choice.Fallback != "" && requested != "" {
		add("DataPathUnavailable", "metadata.annotations["+policies.Prefix+"data-path]",
			"data path %s is not used, %s is: %s", requested, choice.Path, choice.Fallback)
	}
	for _, lacks := range policies.Shortfalls(s, choice.Path.String()) {
		add("PolicyUnavailable", "metadata.annotations["+policies.Prefix+lacks.Policy+"]",
			"%s %s has no effect, there is %s instead: %s", lacks.Policy, lacks.Requested, lacks.Instead, lacks.Reason)
	}
}
