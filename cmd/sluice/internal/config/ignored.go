package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// ignored is a flag or field of kube-proxy that has no meaning here. It is
// accepted, and one sentence says so.
type ignored struct {
	flag  string
	field string // of the file, "" if it has none
	why   string
	// given tells, of a field, that the file asks for something.
	given func(*Document) bool
	// declare makes the flag; nil if it is a string that defaults to "".
	declare func(*settings, *pflag.FlagSet, string)
}

// boolean declares a flag that is true or false.
func boolean(name string, byDefault bool) func(*settings, *pflag.FlagSet, string) {
	return func(_ *settings, f *pflag.FlagSet, why string) { f.Bool(name, byDefault, why) }
}

// text declares a flag that takes anything.
func text(name, byDefault string) func(*settings, *pflag.FlagSet, string) {
	return func(_ *settings, f *pflag.FlagSet, why string) { f.String(name, byDefault, why) }
}

const (
	noHNS      = "Sluice does without Windows' Host Networking Service"
	noGates    = "Sluice has no feature gates"
	noHeaders  = "lines of the log have one form"
	noBuffer   = "the log is not buffered"
	noSplit    = "the log goes to one place"
	noPerFile  = "there is one level for all files"
	noCloud    = "Sluice does not know cloud providers"
	noMachines = "nothing of the machine's identity is used"
)

// ignoredFlags is every flag of kube-proxy 1.8 to 1.36 that means nothing here.
var ignoredFlags = []ignored{
	{flag: "feature-gates", field: "featureGates", why: noGates, given: func(d *Document) bool { return len(d.FeatureGates) > 0 },
		declare: func(s *settings, f *pflag.FlagSet, why string) {
			f.Var(cliflag.NewMapStringBool(&s.doc.FeatureGates), "feature-gates", why)
		}},
	{flag: "show-hidden-metrics-for-version", field: "showHiddenMetricsForVersion", why: "no metric is hidden",
		given: func(d *Document) bool { return d.ShowHiddenMetricsForVersion != "" },
		declare: func(s *settings, f *pflag.FlagSet, why string) {
			f.StringVar(&s.doc.ShowHiddenMetricsForVersion, "show-hidden-metrics-for-version", "", why)
		}},
	{flag: "boot-id-file", why: noMachines, declare: text("boot-id-file", "/proc/sys/kernel/random/boot_id")},
	{flag: "machine-id-file", why: noMachines, declare: text("machine-id-file", "/etc/machine-id,/var/lib/dbus/machine-id")},
	{flag: "cleanup-ipvs", why: "--cleanup removes all that is Sluice's", declare: boolean("cleanup-ipvs", true)},
	{flag: "resource-container", field: "resourceContainer", why: "cgroups are the service manager's",
		given:   func(d *Document) bool { return d.ResourceContainer != "" },
		declare: text("resource-container", "/kube-proxy")},
	{flag: "azure-container-registry-config", why: noCloud},
	{flag: "google-json-key", why: noCloud},
	{flag: "cloud-provider-gce-lb-src-cidrs", why: noCloud, declare: text("cloud-provider-gce-lb-src-cidrs", "130.211.0.0/22,209.85.152.0/22,209.85.204.0/22,35.191.0.0/16")},
	{flag: "cloud-provider-gce-l7lb-src-cidrs", why: noCloud, declare: text("cloud-provider-gce-l7lb-src-cidrs", "130.211.0.0/22,35.191.0.0/16")},

	{flag: "source-vip", field: "winkernel.sourceVip", why: noHNS, given: func(d *Document) bool { return d.Winkernel.SourceVip != "" },
		declare: func(s *settings, f *pflag.FlagSet, why string) {
			f.StringVar(&s.doc.Winkernel.SourceVip, "source-vip", "", why)
		}},
	{flag: "network-name", field: "winkernel.networkName", why: noHNS, given: func(d *Document) bool { return d.Winkernel.NetworkName != "" },
		declare: func(s *settings, f *pflag.FlagSet, why string) {
			f.StringVar(&s.doc.Winkernel.NetworkName, "network-name", "", why)
		}},
	{flag: "enable-dsr", field: "winkernel.enableDSR", why: noHNS, given: func(d *Document) bool { return d.Winkernel.EnableDSR },
		declare: func(s *settings, f *pflag.FlagSet, why string) {
			f.BoolVar(&s.doc.Winkernel.EnableDSR, "enable-dsr", false, why)
		}},
	{flag: "root-hnsendpoint-name", field: "winkernel.rootHnsEndpointName", why: noHNS,
		given:   func(d *Document) bool { return d.Winkernel.RootHnsEndpointName != "" },
		declare: text("root-hnsendpoint-name", "cbr0")},
	{flag: "forward-healthcheck-vip", field: "winkernel.forwardHealthCheckVip", why: noHNS,
		given: func(d *Document) bool { return d.Winkernel.ForwardHealthCheckVip },
		declare: func(s *settings, f *pflag.FlagSet, why string) {
			f.BoolVar(&s.doc.Winkernel.ForwardHealthCheckVip, "forward-healthcheck-vip", false, why)
		}},

	{flag: "vmodule", field: "logging.vmodule", why: noPerFile, given: func(d *Document) bool { return len(d.Logging.VModule) > 0 },
		declare: func(s *settings, f *pflag.FlagSet, why string) {
			f.Var(logsapi.VModuleConfigurationPflag(&s.doc.Logging.VModule), "vmodule", why)
		}},
	{flag: "log-flush-frequency", why: noBuffer, declare: func(s *settings, f *pflag.FlagSet, why string) {
		d := &s.doc.Logging.FlushFrequency.Duration.Duration
		f.DurationVar(d, "log-flush-frequency", *d, why)
	}},
	{flag: "log-text-split-stream", field: "logging.options.text.splitStream", why: noSplit,
		given: func(d *Document) bool { return d.Logging.Options.Text.SplitStream },
		declare: func(s *settings, f *pflag.FlagSet, why string) {
			f.BoolVar(&s.doc.Logging.Options.Text.SplitStream, "log-text-split-stream", false, why)
		}},
	{flag: "log-text-info-buffer-size", field: "logging.options.text.infoBufferSize", why: noBuffer,
		given: func(d *Document) bool { return d.Logging.Options.Text.InfoBufferSize.Sign() != 0 },
		declare: func(s *settings, f *pflag.FlagSet, why string) {
			f.Var(&s.doc.Logging.Options.Text.InfoBufferSize, "log-text-info-buffer-size", why)
		}},
	{flag: "log-json-split-stream", field: "logging.options.json.splitStream", why: noSplit,
		given: func(d *Document) bool { return d.Logging.Options.JSON.SplitStream },
		declare: func(s *settings, f *pflag.FlagSet, why string) {
			f.BoolVar(&s.doc.Logging.Options.JSON.SplitStream, "log-json-split-stream", false, why)
		}},
	{flag: "log-json-info-buffer-size", field: "logging.options.json.infoBufferSize", why: noBuffer,
		given: func(d *Document) bool { return d.Logging.Options.JSON.InfoBufferSize.Sign() != 0 },
		declare: func(s *settings, f *pflag.FlagSet, why string) {
			f.Var(&s.doc.Logging.Options.JSON.InfoBufferSize, "log-json-info-buffer-size", why)
		}},
	{flag: "stderrthreshold", why: noSplit, declare: text("stderrthreshold", "2")},
	{flag: "one-output", why: noSplit, declare: boolean("one-output", false)},
	{flag: "log-backtrace-at", why: "the log has no stack traces", declare: text("log-backtrace-at", ":0")},
	{flag: "add-dir-header", why: noHeaders, declare: boolean("add-dir-header", false)},
	{flag: "skip-headers", why: noHeaders, declare: boolean("skip-headers", false)},
	{flag: "skip-log-headers", why: noHeaders, declare: boolean("skip-log-headers", false)},
}

// loggingFlags are those that are not ignored and count beside a file.
var loggingFlags = []string{"v", "logging-format", "logtostderr", "alsologtostderr", "log-file", "log-dir", "log-file-max-size"}

func (s *settings) declareIgnored(f *pflag.FlagSet) {
	for _, i := range ignoredFlags {
		if i.declare == nil {
			i.declare = text(i.flag, "")
		}
		i.declare(s, f, i.why)
	}
}

// warnOfIgnored adds a warning for everything that is given and means nothing.
func (s *settings) warnOfIgnored() {
	for _, i := range ignoredFlags {
		f := s.flags.Lookup(i.flag)
		name, given := "--"+i.flag, f.Changed && f.Value.String() != f.DefValue
		if s.File != "" && i.given != nil {
			name, given = s.File+": "+i.field, i.given(&s.doc)
		}
		if given {
			s.Warnings = append(s.Warnings, fmt.Sprintf("%s has no meaning here: %s", name, i.why))
		}
	}
	if !s.logToStderr && s.logFile == "" && s.logDir == "" {
		s.Warnings = append(s.Warnings, "--logtostderr=false has no meaning here without --log-file or --log-dir: the log goes to standard error")
	}
}

// ignoredBesideFile returns the flags that were given and do not count, since
// there is a file.
func (s *settings) ignoredBesideFile() (names []string) {
	s.flags.Visit(func(f *pflag.Flag) {
		means := !slices.ContainsFunc(ignoredFlags, func(i ignored) bool { return i.flag == f.Name })
		if means && !slices.Contains(besideFile, f.Name) && !slices.Contains(loggingFlags, f.Name) {
			names = append(names, "--"+f.Name)
		}
	})
	slices.SortFunc(names, strings.Compare)
	return names
}
