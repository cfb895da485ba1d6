package config

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/nearest"
)

// settings is what flags are bound to, before any check.
type settings struct {
	Config // flags that only Sluice has, and what needs no check

	flags   *pflag.FlagSet
	options map[string]option // of the flags
	ignored []option
	errs    []error // mistakes, by the flag or by the field of the file

	hostname                 string // --hostname-override, which is in effect beside a file
	podCIDRs                 []string
	conntrackMax             int32
	healthzPort, metricsPort int32
	logToStderr              bool
	cleanupOnExit            bool
	markMask                 string
	modeless                 bool // the file has an empty mode
	logFile, logDir          string
	given                    map[string]any // fields that the file has
}

// Parse reads the arguments, without the program's name, and the file of --config
// if they name one. The error names the flag or field and the fix, one line a
// mistake.
func Parse(args []string) (Config, error) {
	s, _ := declare()
	if err := s.flags.Parse(args); err != nil {
		return s.Config, fmt.Errorf("read flags: %w%s (see --help)", plain(err), s.meant(err))
	}
	if s.Action.Help || s.Action.Version != "" {
		return s.Config, nil
	}
	for _, rest := range s.flags.Args() {
		if rest != "" { // as "$EXTRA_ARGS" leaves it
			return s.Config, fmt.Errorf(
				"read flags: %q is not a flag: Sluice takes no other arguments (see --help)", rest)
		}
	}
	if err := s.complete(); err != nil {
		return s.Config, err
	}
	err := s.check()
	s.Settings = s.inForce()
	return s.Config, err
}

// wanted is what a flag takes, by the type of its value (pflag.Value).
var wanted = map[string]string{"duration": "a duration like 30s, 5m or 1h", "bool": "true or false",
	"int": "a whole number", "int32": "a whole number", "int64": "a whole number", "float32": "a number"}

// plain names a value that a flag cannot have, and what to give, without the words of Go's parsers.
func plain(err error) error {
	var wrong *pflag.InvalidValueError
	if !errors.As(err, &wrong) {
		return err
	}
	f, cause := wrong.GetFlag(), wrong.Unwrap()
	want, ok := wanted[f.Value.Type()]
	if text := cause.Error(); ok && (strings.HasPrefix(text, "time: ") || strings.HasPrefix(text, "strconv.")) {
		cause = errors.New("give " + want)
	}
	return fmt.Errorf("--%s %q: %w", f.Name, wrong.GetValue(), cause)
}

// meant returns a guess at what was meant by a flag that does not exist, if one
// is at hand.
func (s *settings) meant(err error) string {
	var missing *pflag.NotExistError
	if !errors.As(err, &missing) {
		return ""
	}
	var names []string
	s.flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	best := nearest.Of(missing.GetSpecifiedName(), slices.Values(names))
	if best == "" {
		return ""
	}
	return ": did you mean --" + best + "?"
}

// complete combines flags and the file. The file takes precedence, but for the few
// flags that are in effect beside it in kube-proxy, and those that only Sluice has.
func (s *settings) complete() error {
	if s.File == "" {
		s.completeFlags()
	} else if err := s.readFile(); err != nil {
		return err
	}
	s.warnOfIgnored()
	return nil
}

// readFile replaces what flags say by the file, but keeps what those of the log say.
func (s *settings) readFile() error {
	doc, given, warnings, err := readDocument(s.File)
	if err != nil {
		return err
	}
	s.given = given
	s.Warnings = append(s.Warnings, warnings...)
	s.modeless = doc.Mode == ""
	if s.modeless {
		doc.Mode = s.Document.Mode
	}
	var overruled []string
	log := make(map[string]string)
	s.flags.Visit(func(f *pflag.Flag) {
		switch o := s.options[f.Name]; {
		case strings.HasPrefix(o.field, "logging."):
			log[f.Name] = f.Value.String()
		case !s.effectiveBesideFile(o):
			overruled = append(overruled, "--"+f.Name)
		}
	})
	if slices.Sort(overruled); len(overruled) > 0 {
		s.warn("--config takes precedence, these flags are ignored: %s; write them into %s",
			strings.Join(overruled, ", "), s.File)
	}
	l := &s.Document.Logging
	s.Document, l.VModule = doc, nil
	for name, value := range log {
		err = errors.Join(err, s.flags.Set(name, value))
	}
	l.VModule = append(l.VModule, doc.Logging.VModule...)
	return err
}

// completeFlags works out flags that are more than one field.
func (s *settings) completeFlags() {
	d := &s.Document
	d.HealthzBindAddress = s.address("healthz", d.HealthzBindAddress, s.healthzPort)
	d.MetricsBindAddress = s.address("metrics", d.MetricsBindAddress, s.metricsPort)
	if t := &d.IPTables; !s.flags.Changed("iptables-min-sync-period") {
		t.MinSyncPeriod.Duration = min(t.MinSyncPeriod.Duration, t.SyncPeriod.Duration)
	}
	d.NFTables.SyncPeriod, d.NFTables.MinSyncPeriod = d.IPTables.SyncPeriod, d.IPTables.MinSyncPeriod
	d.NFTables.MasqueradeAll, d.NFTables.MasqueradeBit = d.IPTables.MasqueradeAll, d.IPTables.MasqueradeBit
	if s.conntrackMax > 0 { // the least number is the only one, whatever there is per core
		d.Conntrack.MaxPerCore, d.Conntrack.Min = new(int32(1)), &s.conntrackMax
	}
}

// address combines --NAME-bind-address and --NAME-port. The port is used where the
// address has none, or is not given; 0 means no server.
func (s *settings) address(name, addr string, port int32) string {
	if s.flags.Changed(name + "-port") {
		if port == 0 {
			return ""
		}
		if host, _, ok := strings.Cut(addr, ":"); ok && !s.flags.Changed(name+"-bind-address") {
			addr = host
		}
	}
	return withPort(addr, port)
}

// effectiveBesideFile reports whether a flag is in effect although there is a file:
// it stands for no field, or is one of the few that kube-proxy treats so, or says what an
// empty mode of the file means.
func (s *settings) effectiveBesideFile(o option) bool {
	return o.field == "" || o.name == "hostname-override" || strings.HasPrefix(o.field, "logging.") ||
		o.name == "proxy-mode" && s.modeless ||
		slices.ContainsFunc(s.ignored, func(i option) bool { return i.name == o.name })
}

// warnOfIgnored adds a warning for everything that is given and ignored.
func (s *settings) warnOfIgnored() {
	unbound := map[string]string{ // fields whose flags have a default of their own
		"resource-container":    s.Document.ResourceContainer,
		"root-hnsendpoint-name": s.Document.Winkernel.RootHnsEndpointName,
	}
	for _, o := range s.ignored {
		f := s.flags.Lookup(o.name)
		name, given := "--"+o.name, f.Changed && f.Value.String() != f.DefValue
		if s.File != "" && o.field != "" {
			name, given = s.File+": "+o.field, f.Value.String() != f.DefValue
			if text, ok := unbound[o.name]; ok {
				given = text != ""
			}
		}
		if given {
			s.warn("%s is ignored: %s", name, o.usage)
		}
	}
}

func (s *settings) warn(format string, args ...any) {
	s.Warnings = append(s.Warnings, fmt.Sprintf(format, args...))
}

func newFlagSet() *pflag.FlagSet {
	f := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	f.SortFlags = false
	f.SetOutput(io.Discard) // the caller prints the error, once
	return f
}

// helpWidth is how many columns the help text has.
const helpWidth = 110

// Usage is the help text.
func Usage() string {
	var b strings.Builder
	b.WriteString("Sluice balances Kubernetes Services in user space, in place of kube-proxy.\n\n" +
		"Usage:\n" +
		"  sluice --config FILE              serve a cluster, configured by a file for kube-proxy\n" +
		"  sluice --kubeconfig FILE [flags]  the same, configured by flags; in a pod: sluice [flags]\n" +
		"  sluice --manifests PATH [flags]   serve the Services of files\n" +
		"  sluice upgrade [flags]            hand over to a new process, without losing a connection\n" +
		"  sluice --cleanup                  remove all rules, sets and addresses from the kernel\n" +
		"  sluice explain --help             show which endpoint a client gets, and by which rules\n" +
		"  sluice check PATH                 find mistakes in manifests and flags before a start\n" +
		"  sluice status | top               show the running process, and whether it is well\n" +
		"  sluice services | endpoints       list what it serves, with its state and counters\n" +
		"  sluice connections | clients      list who is connected to which endpoint, and who waits\n" +
		"  sluice events | watch | config    list what has changed lately, or changes; the configuration in force\n" +
		"  sluice drain ENDPOINT             keep new connections from an endpoint, or a node\n" +
		"  sluice support                    write an archive for the report of a problem\n" +
		"  sluice completion SHELL           print a script that completes commands in bash, zsh or fish\n")
	_, groups := declare()
	for _, g := range groups {
		fmt.Fprintf(&b, "\n%s:\n%s", g.title, g.flagSet().FlagUsagesWrapped(helpWidth))
	}
	return b.String()
}
