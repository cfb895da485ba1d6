package config

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/udp"
)

// write makes a file and returns its name.
func write(t *testing.T, name, text string) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func parse(t *testing.T, args ...string) Config {
	t.Helper()
	c, err := Parse(args)
	if err != nil {
		t.Fatalf("Parse(%q) = %v", args, err)
	}
	return c
}

// usual is what the default mode means here.
func usual() string {
	if runtime.GOOS == "windows" {
		return ModeWinUserspace
	}
	return ModeUserspace
}

// absent is what this system says of /no/such/file.
func absent() string {
	_, err := os.ReadFile("/no/such/file")
	return errors.Unwrap(err).Error()
}

func TestDefaults(t *testing.T) {
	c := parse(t, "--manifests", "a", "--manifests=b,c", "--proxy-mode=", "")
	if len(c.Source.Manifests) != 2 || c.Source.Manifests[1] != "b,c" || c.DataPath.Mode != usual() || c.DataPath.UDPTimeout != 0 ||
		c.DataPath.BindAddress != netip.IPv4Unspecified() || c.DataPath.Loops < 1 || c.Document.HealthzBindAddress != "0.0.0.0:10256" || c.Document.MetricsBindAddress != "127.0.0.1:10249" ||
		c.Kernel.SyncPeriod != 30*time.Second || c.Kernel.MinSyncPeriod != time.Second || *c.Document.OOMScoreAdj != -999 || *c.Document.IPTables.MasqueradeBit != 14 {
		t.Errorf("Parse = %+v", c)
	}
	if host, _ := os.Hostname(); c.Node.Name != strings.ToLower(host) {
		t.Errorf("node name %q, host %q", c.Node.Name, host)
	}
	if len(c.Warnings) != 0 {
		t.Errorf("warnings: %q", c.Warnings)
	}
}

// TestMarkMask: other bits of marks may be used, beside which there is one for masquerading.
func TestMarkMask(t *testing.T) {
	for args, want := range map[string]uint32{
		"--manifests=a":                                                    0xffff0000,
		"--manifests=a --mark-mask=0x7fff8000":                             0x7fff8000,
		"--manifests=a --mark-mask=0xffff8000":                             0xffff8000,
		"--manifests=a --mark-mask=0x00ffff00 --iptables-masquerade-bit=0": 0x00ffff00,
		"--manifests=a --mark-mask=65535 --iptables-masquerade-bit=31":     0xffff,
	} {
		if c := parse(t, strings.Fields(args)...); c.Kernel.MarkMask != want {
			t.Errorf("%s: %#x, want %#x", args, c.Kernel.MarkMask, want)
		}
	}
}

func TestCleanupNeedsNoSource(t *testing.T) {
	for _, flag := range []string{"--cleanup", "--cleanup-iptables=true"} {
		if c := parse(t, flag, "--kubeconfig", "/no/such/file"); !c.Action.Cleanup {
			t.Errorf("Parse(%s) = %+v", flag, c)
		}
	}
}

// TestOnExit: what becomes of Services at the end, and the old name of one way.
func TestOnExit(t *testing.T) {
	for args, want := range map[string]OnExit{
		"": Offload, "--on-exit=refuse": Refuse, "--on-exit=cleanup": CleanUp, "--cleanup-on-exit": CleanUp,
		"--cleanup-on-exit --on-exit=cleanup": CleanUp, "--cleanup-on-exit=false": Offload,
	} {
		if c := parse(t, append(strings.Fields(args), "--manifests=x")...); c.Process.OnExit != want {
			t.Errorf("Parse(%s): on exit %s, want %s", args, c.Process.OnExit, want)
		}
	}
	if c := parse(t, "--manifests=x"); c.Kernel.RulesLifetime != 10*time.Minute {
		t.Errorf("rules last for %v", c.Kernel.RulesLifetime)
	}
	if c := parse(t, "--manifests=x", "--rules-lifetime=0"); c.Kernel.RulesLifetime != 0 {
		t.Errorf("rules last for %v", c.Kernel.RulesLifetime)
	}
	for args, want := range map[string]string{
		"--on-exit=stay":                     `--on-exit "stay" is unknown: give offload, refuse or cleanup`,
		"--on-exit=refuse --cleanup-on-exit": "--cleanup-on-exit contradicts --on-exit=refuse: give one of them",
		"--rules-lifetime=1500ms":            "--rules-lifetime 1.5s: give whole seconds up to 1000h0m0s, like 10m, or 0",
		"--rules-lifetime=1001h":             "--rules-lifetime 1001h0m0s: give whole seconds up to 1000h0m0s, like 10m, or 0",
	} {
		if _, err := Parse(append(strings.Fields(args), "--manifests=x")); err == nil || err.Error() != want {
			t.Errorf("Parse(%s) = %v, want %s", args, err, want)
		}
	}
}

// TestPage: the page is for this host unless others are let in, or none is.
func TestPage(t *testing.T) {
	for args, want := range map[string]Page{"": PageAuto, "--page=auto": PageAuto, "--page=always": PageAlways,
		"--page never": PageNever, "--page=always --metrics-bind-address=0.0.0.0:10249": PageAlways} {
		if c := parse(t, append(strings.Fields(args), "--manifests=x")...); c.Page != want {
			t.Errorf("Parse(%s): page %s, want %s", args, c.Page, want)
		}
	}
}

func TestSources(t *testing.T) {
	kubeconfig := write(t, "kubeconfig", "")
	for args, fromAPI := range map[string]bool{"": true, "--kubeconfig " + kubeconfig: true, "--master https://192.0.2.1 ": true, "--manifests x": false} {
		c := parse(t, strings.Fields(args)...)
		if c.FromAPI() != fromAPI || c.Document.ClientConnection.QPS != 5 || c.Document.ClientConnection.Burst != 10 || c.Document.ConfigSyncPeriod.Duration != 15*time.Minute ||
			c.Document.ClientConnection.ContentType != "application/vnd.kubernetes.protobuf" {
			t.Errorf("Parse(%s) = %+v", args, c)
		}
	}
}

// TestClassicFlags: the list that is in unit files and manifests of a decade.
func TestClassicFlags(t *testing.T) {
	kubeconfig := write(t, "kubeconfig", "")
	c := parse(t, "--logtostderr=true", "--v=0", "--master=https://192.0.2.1:6443", "--bind-address=192.0.2.10",
		"--cluster-cidr=10.244.0.0/16", "--hostname-override=  Node-1", "--kubeconfig="+kubeconfig)
	if c.Log.Verbosity != 0 || c.Log.File != "" || c.Source.Master != "https://192.0.2.1:6443" || c.DataPath.BindAddress.String() != "192.0.2.10" ||
		len(c.Node.Pods()) != 1 || c.Node.Pods()[0].String() != "10.244.0.0/16" || c.Node.Name != "node-1" ||
		c.Document.ClientConnection.Kubeconfig != kubeconfig || !c.FromAPI() || c.DataPath.Mode != usual() || len(c.Warnings) != 0 {
		t.Errorf("Parse = %+v", c)
	}
}

func TestFlagsThatMeanMoreThanOneThing(t *testing.T) {
	healthz := func(want string) func(Config) bool {
		return func(c Config) bool { return c.Document.HealthzBindAddress == want }
	}
	noAddresses := func(c Config) bool { return c.Document.HealthzBindAddress+c.Document.MetricsBindAddress == "" }
	for _, test := range []struct {
		args string
		ok   func(Config) bool
	}{
		{"--logging-format=json", func(c Config) bool { return c.Log.JSON }},
		{"-v=3", func(c Config) bool { return c.Log.Verbosity == 3 }},
		{"--conntrack-max=1000 --conntrack-min=5", func(c Config) bool { return c.Kernel.Conntrack.MaxPerCore == 1 && c.Kernel.Conntrack.Min == 1000 }},
		{"--healthz-port=0 --metrics-port=0", noAddresses},
		{"--healthz-port=1 --metrics-port=2", func(c Config) bool {
			return c.Document.HealthzBindAddress == "0.0.0.0:1" && c.Document.MetricsBindAddress == "127.0.0.1:2"
		}},
		{"--healthz-bind-address=::1 --healthz-port=7", healthz("[::1]:7")},
		{"--healthz-bind-address=1.2.3.4:5 --healthz-port=7", healthz("1.2.3.4:5")},
		{"--metrics-bind-address=0.0.0.0", func(c Config) bool { return c.Document.MetricsBindAddress == "0.0.0.0:10249" }},
		{"--healthz-bind-address= --metrics-bind-address=", noAddresses},
		{"--log_dir=/x --logtostderr=false", func(c Config) bool { return c.Log.File == filepath.Join("/x", "sluice.log") }},
		{"--log_file=/y --log_dir=/x --logtostderr=false", func(c Config) bool { return c.Log.File == "/y" }},
		{"--log_file=/y", func(c Config) bool { return c.Log.File == "" }},
		{"--proxy-mode=ipvs --ipvs-sync-period=1m --iptables-sync-period=2m", func(c Config) bool { return c.Kernel.SyncPeriod == time.Minute && c.Kernel.MinSyncPeriod == 0 }},
		{"--proxy-mode=iptables --ipvs-sync-period=1m --iptables-sync-period=2m", func(c Config) bool { return c.Kernel.SyncPeriod == 2*time.Minute }},
		{"--cluster-cidr=10.244.0.0/16 --node-pod-cidrs=10.244.7.0/24", func(c Config) bool { return c.Node.Pods()[0].String() == "10.244.7.0/24" }},
		{"--cluster-cidr=10.244.0.0/16 --detect-local-mode=NodeCIDR", func(c Config) bool { return c.Node.Pods() == nil }},
		{"--bind-address=127.0.0.1 --proxy-mode=ipvs", func(c Config) bool { return c.DataPath.BindAddress.IsLoopback() }},
		{"", func(c Config) bool { return c.DataPath.UDPGSO == udp.GSOAuto }},
		{"--udp-gso", func(c Config) bool { return c.DataPath.UDPGSO == udp.GSOOn }},
		{"--udp-gso=false", func(c Config) bool { return c.DataPath.UDPGSO == udp.GSOOff }},
		{"--version=false --version", func(c Config) bool { return c.Action.Version == "true" }},
		{"--kube-api-content-type=application/json", func(c Config) bool { return c.Document.ClientConnection.ContentType == "application/json" }},
		{"--ipvs-scheduler=mh,mh-port", func(c Config) bool { return c.Document.IPVS.Scheduler == "mh,mh-port" }},
		{"--iptables-min-sync-period=0 --hostname-override=Node-1.example", func(c Config) bool { return c.Kernel.MinSyncPeriod == 0 && c.Node.Name == "node-1.example" }},
		{"", func(c Config) bool { return c.DataPath.Policies == lb.Policies{} }},
		{"--default-policy=scheduler=mh,mh-port --default-policy slow-start=30s", func(c Config) bool {
			return c.DataPath.Policies == lb.Policies{Scheduler: "mh,mh-port", SlowStart: 30e9}
		}},
		{"--default-policy=outlier-ejection=true", func(c Config) bool {
			return c.DataPath.Policies == lb.Policies{OutlierEjection: lb.On}
		}},
		{"--default-policy outlier-ejection=false --default-policy transparent=true", func(c Config) bool {
			return c.DataPath.Policies == lb.Policies{OutlierEjection: lb.Off, Transparent: lb.On}
		}},
		{"--auto-stabilization=1m", func(c Config) bool { return c.DataPath.Stabilization == time.Minute }},
		{"--version=raw", func(c Config) bool { return c.Action.Version == "raw" }},
	} {
		if c := parse(t, append(strings.Fields(test.args), "--manifests=x")...); !test.ok(c) {
			t.Errorf("Parse(%s) = %+v", test.args, c)
		}
	}
}

// TestMistakes: each error names the flag and what to do.
func TestMistakes(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"--manifests x --master https://192.0.2.1", "not from both"},
		{"--kubeconfig /no/such/file", "/no/such/file: " + absent()},
		{"--kubeconfig .", ". is a folder"},
		{"--manifests=", "--manifests is empty: give a file or folder"},
		{"--drain-timeout 30", `read flags: --drain-timeout "30": give a duration like 30s, 5m or 1h`},
		{"--loops x", `read flags: --loops "x": give a whole number`},
		{"--kube-api-qps x", `read flags: --kube-api-qps "x": give a number`},
		{"--profiling=maybe", `read flags: --profiling "maybe": give true or false`},
		{"--default-policy idle-timeout=30", `read flags: --default-policy "idle-timeout=30": idle-timeout: give a duration from 100ms to 720h`},
		{"--page=yes", `--page "yes" is unknown: give auto, always or never`},
		{"--service-proxy-name a!b", `--service-proxy-name "a!b": give a value that a label may have`},
		{"--proxy-port-range 9-1", "--proxy-port-range is wrong: "},
		{"--config /no/such/file", "--config: open /no/such/file: " + absent()},
		{"--config .", "--config: read .: "},
		{"--kube-api-burst=-1", "--kube-api-burst"},
		{"--kube-api-qps=fast", "kube-api-qps"},
		{"--kube-api-qps=nan", "--kube-api-qps NaN: give a number"},
		{"--kube-api-content-type=protobuf", `--kube-api-content-type "protobuf" is unknown: give application/vnd.kubernetes.protobuf or application/json`},
		{"--kube-api-content-type=", "--kube-api-content-type"},
		{"--ipvs-scheduler=fastest", `--ipvs-scheduler "fastest" is no scheduler of IPVS: give one of dh, fo, `},
		{"--ipvs-scheduler=rr,mh-port", "--ipvs-scheduler scheduler rr has no flag"},
		{"--hostname-override=my_node", `--hostname-override "my_node" cannot be the name of a Node`},
		{"--node-zone=a/b", `--node-zone "a/b"`},
		{"--detect-local-mode BridgeInterface --pod-bridge-interface=a/b", `--pod-bridge-interface "a/b" cannot be the name of an interface`},
		{"--pod-interface-name-prefix=abcdefghijklmnop", "--pod-interface-name-prefix"},
		{"--healthz-bind-address=0.0.0.0:1 --metrics-bind-address=0.0.0.0:1", "is that of --healthz-bind-address too: give another port"},
		{"--config-sync-period 0", "--config-sync-period"},
		{"--proxy-mode kernelspace", "give userspace"},
		{"--proxy-mode bridge", `--proxy-mode "bridge" is unknown: give userspace`},
		{"--bind-address fe80::1%eth0", "link-local"},
		{"--hostname-override \u00a0", "--hostname-override"},
		{"--cluster-cidr 10.0.0.0/33", `--cluster-cidr "10.0.0.0/33" is not an address range`},
		{"--cluster-cidr 10.0.0.0/8,11.0.0.0/8", "one of each family"},
		{"--cluster-cidr 10.0.0.0/8,fd00::/8,11.0.0.0/8", "one of each family"},
		{"--detect-local-mode Guess", "--detect-local-mode"},
		{"--detect-local-mode BridgeInterface", "--pod-bridge-interface"},
		{"--detect-local-mode InterfaceNamePrefix", "--pod-interface-name-prefix"},
		{"--nodeport-addresses 1.2.3.4", "--nodeport-addresses"},
		{"--node-pod-cidrs 10.0.0.1", "--node-pod-cidrs"},
		{"--iptables-sync-period 1ms", "--iptables-sync-period"},
		{"--iptables-min-sync-period 1m", "--iptables-min-sync-period"},
		{"--ipvs-min-sync-period=-1s", "--ipvs-min-sync-period"},
		{"--ipvs-udp-timeout=-1s", "--ipvs-udp-timeout"},
		{"--ipvs-exclude-cidrs 10.0.0.1", "--ipvs-exclude-cidrs"},
		{"--iptables-masquerade-bit 32", "--iptables-masquerade-bit 32: give 0 to 31"},
		{"--mark-mask bits", `--mark-mask "bits": give at least 16 consecutive bits, like 0xffff0000`},
		{"--mark-mask=", `--mark-mask "": give at least 16 consecutive bits`},
		{"--mark-mask 0", `--mark-mask "0": give at least 16 consecutive bits`},
		{"--mark-mask 0xfffe0000", `--mark-mask "0xfffe0000": give at least 16 consecutive bits`},
		{"--mark-mask 0xff00ff00", `--mark-mask "0xff00ff00": give at least 16 consecutive bits`},
		{"--mark-mask 0x1ffff0000", `--mark-mask "0x1ffff0000": give at least 16 consecutive bits`},
		{"--mark-mask 0xffff", "--mark-mask 0xffff holds bit 14 of --iptables-masquerade-bit: move one of them"},
		{"--iptables-masquerade-bit 20",
			"--mark-mask 0xffff0000 holds bit 20 of --iptables-masquerade-bit: move one of them"},
		{"--oom-score-adj 1001", "--oom-score-adj"},
		{"--conntrack-min=-1", "--conntrack-min"},
		{"--conntrack-max=-1", "--conntrack-max"},
		{"--conntrack-udp-timeout=-1s", "--conntrack-udp-timeout"},
		{"--bind-address node1", "not an IP address"},
		{"--proxy-port-range 9-1", "--proxy-port-range"},
		{"--proxy-port-range 1-70000", "--proxy-port-range"},
		{"--udp-timeout=-1s", "--udp-timeout"},
		{"--udp-timeout 5", "--udp-timeout"},
		{"--drain-timeout -1s", "--drain-timeout"},
		{"--loops 0", "--loops"},
		{"--metrics-services -1", "--metrics-services -1: give 0 to 100000"},
		{"--metrics-endpoints 1000000", "--metrics-endpoints 1000000: give 0 to 100000"},
		{"--metrics-service-families some", `--metrics-service-families "some" is unknown: give basic or all`},
		{"--outlier-consecutive-failures 1", "--outlier-consecutive-failures 1: give 2 to 1000"},
		{"--outlier-base-ejection-time 1ms", "--outlier-base-ejection-time 1ms: give 100ms to 1h, like 30s"},
		{"--outlier-max-ejection-percent 101", "--outlier-max-ejection-percent 101: give 0 to 100"},
		{"--outlier-failure-percentage 101", "--outlier-failure-percentage"},
		{"--default-policy scheduler=sed", `scheduler: "sed" is no algorithm of user space: use one of rr, lc, `},
		{"--default-policy slow-start=2h", "slow-start: give a duration up to 1h, or 0 for none"},
		{"--default-policy slow-start", "give KEY=VALUE, like scheduler=lc"},
		{"--default-policy schedular=lc", `there is no policy "schedular": did you mean scheduler?`},
		{"--default-policy udp-idle-timeout=5s", "give --udp-timeout"},
		{"--default-policy data-path=auto", "give --proxy-mode"},
		{"--default-policy proxy-protocol=v2", "give the annotation sluice.io/proxy-protocol"},
		{"--busy-poll 11ms", "--busy-poll 11ms: give 0 to 10ms"},
		{"--busy-poll 1500ns", "whole microseconds"},
		{"--sctp-engine tcp", "give auto, socket or packet"},
		{"--udp-gso=never", "give auto, on or off"},
		{"-v=-1", "-v"},
		{"--logging-format xml", "--logging-format"},
		{"--feature-gates X", "feature-gates"},
		{"--healthz-port 70000", "--healthz-port"},
		{"--healthz-bind-address 10256", "--healthz-bind-address"},
		{"--metrics-bind-address 1.2.3.4:http", "--metrics-bind-address"},
		{"--metrics-bind-address host:1", "--metrics-bind-address"},
		{"--version=1.2", "--version=raw"},
		{"y", `"y" is not a flag`},
		{"--no-such-flag", "no-such-flag (see --help)"},
		{"--proxy-mod=ipvs", "--proxy-mod: did you mean --proxy-mode? (see --help)"},
		{"--clustercidr=x", "did you mean --cluster-cidr?"},
		{"--hostname_overide=x", "did you mean --hostname-override?"},
	} {
		wantMistake(t, test.args, test.want)
	}
	if usual() == ModeUserspace { // nothing is steered to that address otherwise
		wantMistake(t, "--bind-address 127.0.0.1", "do not arrive on localhost")
		wantMistake(t, "--bind-address ::1", "do not arrive on localhost")
	}
}

// wantMistake wants one sentence with want.
func wantMistake(t *testing.T, line, want string) {
	t.Helper()
	args := strings.Split(line, " ")
	if !strings.Contains(line, "config") {
		args = append(args, "--manifests=x")
	}
	_, err := Parse(args)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Parse(%s) = %v, want an error with %q", line, err, want)
	} else if strings.Contains(err.Error(), "\n") {
		t.Errorf("Parse(%s): more than one sentence: %v", line, err)
	}
}

// TestIgnored: what means nothing is accepted and named once, with the reason.
func TestIgnored(t *testing.T) {
	given := map[string]string{"log-flush-frequency": "7s", "vmodule": "a=1", "feature-gates": "A=true", "log-text-info-buffer-size": "1Ki", "log-json-info-buffer-size": "1Ki"}
	all, _ := declare()
	for _, i := range all.ignored {
		s, _ := declare()
		f := s.flags.Lookup(i.name)
		value := given[i.name]
		switch {
		case value != "":
		case f.Value.Type() == "bool" && f.DefValue == "false":
			value = "true"
		case f.Value.Type() == "bool":
			value = "false"
		default:
			value = "x"
		}
		c := parse(t, "--manifests=x", "--"+i.name+"="+value)
		if want := "--" + i.name + " is ignored: " + i.usage; len(c.Warnings) != 1 || c.Warnings[0] != want {
			t.Errorf("warnings = %q, want %q", c.Warnings, want)
		}
		if f.DefValue != "" && i.name != "feature-gates" {
			if c := parse(t, "--manifests=x", "--"+i.name+"="+f.DefValue); len(c.Warnings) > 0 {
				t.Errorf("the default given: %q", c.Warnings)
			}
		}
	}
	for _, flag := range []string{"--logtostderr=false", "--pod-bridge-interface=cni0", "--pod-interface-name-prefix=veth"} {
		if c := parse(t, "--manifests=x", flag); len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "is ignored") {
			t.Errorf("%s: warnings = %q", flag, c.Warnings)
		}
	}
}

// TestUsage: every flag is in the help, each in one group.
func TestUsage(t *testing.T) {
	usage := Usage()
	all, groups := declare()
	count := 0
	for _, g := range groups {
		if !strings.Contains(usage, "\n"+g.title+":\n") {
			t.Errorf("the help has no group %q", g.title)
		}
		g.flagSet().VisitAll(func(f *pflag.Flag) {
			count++
			if !strings.Contains(usage, "--"+f.Name+" ") && !strings.Contains(usage, "--"+f.Name+"\n") {
				t.Errorf("the help has no --%s", f.Name)
			}
		})
	}
	total := 0
	all.flags.VisitAll(func(*pflag.Flag) { total++ })
	if count != total {
		t.Errorf("%d flags in groups, %d in all", count, total)
	}
}
