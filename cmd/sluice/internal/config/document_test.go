package config

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// sample makes a file of one in testdata, with a kubeconfig that is there.
func sample(t *testing.T, name string) (file, kubeconfig string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig = write(t, "kubeconfig", "")
	return write(t, name, strings.ReplaceAll(string(text), "KUBECONFIG", kubeconfig)), kubeconfig
}

// TestSamples: the files of operators mean what they say. Each is compared with
// the flags that say the same.
func TestSamples(t *testing.T) {
	conntrackLarge := "--conntrack-max-per-core=131072 --conntrack-min=1048576 --conntrack-tcp-timeout-established=2h --conntrack-tcp-timeout-close-wait=5m --conntrack-udp-timeout=30s --conntrack-udp-timeout-stream=2m --conntrack-tcp-be-liberal"
	for _, test := range []struct{ file, flags string }{
		{"default.yaml", "--cluster-cidr=10.244.0.0/16"},
		{"production-ipvs.yaml", "--proxy-mode=ipvs --kube-api-qps=50 --kube-api-burst=100 --cluster-cidr=10.244.0.0/16,fd00:10:244::/56 " +
			"--metrics-bind-address=0.0.0.0:10249 --healthz-bind-address=0.0.0.0 --conntrack-max-per-core=65536 --conntrack-min=524288 " +
			"--ipvs-scheduler=lc --ipvs-strict-arp --ipvs-sync-period=15s --ipvs-min-sync-period=2s --ipvs-exclude-cidrs=192.0.2.0/24 --nodeport-addresses=primary"},
		{"small-iptables.yaml", "--proxy-mode=iptables --hostname-override=edge-1 --masquerade-all --iptables-masquerade-bit=15 --iptables-localhost-nodeports=false " +
			"--iptables-sync-period=1m --iptables-min-sync-period=10s --detect-local-mode=BridgeInterface --pod-bridge-interface=cni0 --conntrack-max-per-core=0 --oom-score-adj=-500"},
		{"large-ipvs.yaml", "--proxy-mode=ipvs --kube-api-qps=200 --kube-api-burst=400 --config-sync-period=30m --bind-address=:: --healthz-bind-address=:: --metrics-bind-address=::1 " +
			"--detect-local-mode=NodeCIDR --ipvs-scheduler=wrr --ipvs-min-sync-period=5s --ipvs-sync-period=1m --ipvs-tcp-timeout=15m --ipvs-tcpfin-timeout=30s --ipvs-udp-timeout=1m " +
			conntrackLarge + " --profiling --bind-address-hard-fail --v=2"},
		{"old-userspace.yaml", "--proxy-mode=userspace --proxy-port-range=30000-30999 --udp-timeout=2s --nodeport-addresses=192.0.2.0/24 --feature-gates=SupportIPVSProxyMode=true --resource-container=/old"},
	} {
		t.Run(test.file, func(t *testing.T) {
			file, kubeconfig := sample(t, test.file)
			byFile := parse(t, "--config="+file)
			byFlags := parse(t, append(strings.Fields(test.flags), "--kubeconfig="+kubeconfig)...)
			ignored := 0
			if test.file == "old-userspace.yaml" {
				ignored = 2
			}
			if len(besidesMode(byFile.Warnings)) != ignored || len(byFlags.Warnings) != ignored {
				t.Errorf("warnings: %q and %q, want %d", byFile.Warnings, byFlags.Warnings, ignored)
			}
			byFile.File = ""
			f, flags := &byFile.Document, &byFlags.Document
			flags.ResourceContainer, flags.NFTables = f.ResourceContainer, f.NFTables // not what the flags stand for
			if !byFile.means(byFlags) {
				t.Errorf("the file and the flags differ:\n%+v\n%+v", byFile, byFlags)
			}
		})
	}
}

// besidesMode returns warnings without that of an empty mode.
func besidesMode(warnings []string) []string {
	return slices.DeleteFunc(slices.Clone(warnings), func(w string) bool { return strings.Contains(w, ": mode is empty: ") })
}

// TestMode: the mode of the file is in effect, and --proxy-mode only where that is empty. What an empty
// mode comes to by default is said, since kube-proxy takes another.
func TestMode(t *testing.T) {
	if usual() != ModeUserspace {
		t.Skip("kube-proxy has no mode that keeps the client's address here")
	}
	const empty, ruled = ": mode is empty: ", "these flags are ignored: --proxy-mode"
	for _, test := range []struct{ file, flag, want, warning string }{
		{"", "", ModeUserspace, empty},
		{"mode: \"\"\n", "", ModeUserspace, empty},
		{"", "iptables", ModeIPTables, ""},
		{"mode: \"\"\n", "userspace", ModeUserspace, ""},
		{"mode: userspace\n", "", ModeUserspace, ""},
		{"mode: ipvs\n", "iptables", ModeIPVS, ruled},
		{"mode: nftables\n", "", ModeNFTables, ""},
		{"mode: auto\n", "", ModeAuto, ""},
		{"", "nftables", ModeNFTables, ""},
	} {
		args := []string{"--config", write(t, "f.yaml", header+test.file)}
		if test.flag != "" {
			args = append(args, "--proxy-mode="+test.flag)
		}
		c := parse(t, args...)
		if c.DataPath.Mode != test.want || string(c.Document.Mode) != test.want {
			t.Errorf("%q with %q: mode %s, want %s", test.file, test.flag, c.DataPath.Mode, test.want)
		}
		if said := strings.Join(c.Warnings, "\n"); said == "" != (test.warning == "") || !strings.Contains(said, test.warning) {
			t.Errorf("%q with %q: warnings %q, want %q", test.file, test.flag, said, test.warning)
		}
		if c := parse(t, append(args, "--init-only")...); test.warning == empty && len(c.Warnings) > 0 {
			t.Errorf("%q: who serves nothing warns: %q", test.file, c.Warnings)
		}
	}
	_, err := Parse([]string{"--config", write(t, "f.yaml", header), "--proxy-mode=bridge"})
	if err == nil || !strings.HasPrefix(err.Error(), "--proxy-mode ") {
		t.Errorf("%v: want one that names the flag", err)
	}
}

// TestSampleDefaults: kubeadm's empty fields are the defaults.
func TestSampleDefaults(t *testing.T) {
	file, _ := sample(t, "default.yaml")
	c := parse(t, "--config="+file)
	if c.DataPath.Mode != usual() || c.Document.HealthzBindAddress != "0.0.0.0:10256" || c.Document.MetricsBindAddress != "127.0.0.1:10249" || c.Document.ClientConnection.QPS != 5 ||
		c.Kernel.Conntrack.MaxPerCore != 32768 || c.Kernel.Conntrack.TCPEstablished != 24*time.Hour || c.DataPath.UDPTimeout != 0 ||
		!*c.Document.IPTables.LocalhostNodePorts || *c.Document.OOMScoreAdj != -999 || c.Document.DetectLocalMode != DetectClusterCIDR {
		t.Errorf("Parse = %+v", c)
	}
}

const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// TestPrecedence: a file counts more than flags, but for those that kube-proxy
// has count beside it, and those it does not have.
func TestPrecedence(t *testing.T) {
	file := write(t, "f.yaml", header+"hostnameOverride: By-File\nclusterCIDR: 10.1.0.0/16\nlogging: {verbosity: 1, vmodule: [{filePattern: a, verbosity: 2}]}\n")
	c := parse(t, "--config", file, "--cluster-cidr=10.2.0.0/16", "--udp-timeout=1s", "--bind-address=127.0.0.1", "--healthz-port=0",
		"--master=https://192.0.2.1", "--hostname-override=By-Flag", "--v=4", "--vmodule=b=3", "--loops=3", "--drain-timeout=1s", "--node-zone=z")
	if c.Node.Name != "by-flag" || c.Node.ClusterCIDRs[0].String() != "10.1.0.0/16" || c.DataPath.UDPTimeout != 0 ||
		!c.DataPath.BindAddress.IsUnspecified() || c.Document.HealthzBindAddress == "" || c.Source.Master != "https://192.0.2.1" || c.Log.Verbosity != 4 || c.DataPath.Loops != 3 ||
		c.Process.DrainTimeout != time.Second || c.Node.Zone != "z" || len(c.Document.Logging.VModule) != 2 || c.Document.Logging.VModule[0].FilePattern != "b" {
		t.Errorf("Parse = %+v", c)
	}
	want := "--config takes precedence, these flags are ignored: --bind-address, --cluster-cidr, --healthz-port, --udp-timeout; write them into " + file
	if got := besidesMode(c.Warnings); len(got) != 2 || got[0] != want || !strings.Contains(got[1], "logging.vmodule is ignored") {
		t.Errorf("warnings = %q, want %q first", c.Warnings, want)
	}
	if c := parse(t, "--config", file); c.Node.Name != "by-file" || c.Log.Verbosity != 1 {
		t.Errorf("without flags: %+v", c)
	}
}

// TestLenient: what a file says in vain is a warning that names it.
func TestLenient(t *testing.T) {
	for text, want := range map[string]string{
		header + "udpIdelTimeout: 1s\n":               `unknown field "udpIdelTimeout"`,
		header + "iptables: {masqueradeBits: 3}\n":    `unknown field "iptables.masqueradeBits"`,
		header + "mode: userspace\nmode: userspace\n": `"mode" already set`,
		header + "---\nkind: KubeletConfiguration\n":  "only the first document",
		header + "winkernel: {enableDSR: true}\n":     "winkernel.enableDSR is ignored",
		header + "Mode: ipvs\n":                       `unknown field "Mode"`,
		header + "conntrack: {max: 5}\n":              `unknown field "conntrack.max"`,
		`{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration","mode":"","mode":""}`: `duplicate field "mode"`,
	} {
		file := write(t, "f.yaml", text)
		c := parse(t, "--config", file)
		warnings := besidesMode(c.Warnings)
		if len(warnings) != 1 || !strings.HasPrefix(warnings[0], file+": ") || !strings.Contains(warnings[0], want) || strings.Contains(warnings[0], "\n") {
			t.Errorf("%s: warnings = %q, want one with %q", text, warnings, want)
		}
	}
	if c := parse(t, "--config", write(t, "f.yaml", "# first\n---\n"+header+"---\n# nothing\n")); len(besidesMode(c.Warnings)) > 0 {
		t.Errorf("comments are no documents: %q", c.Warnings)
	}
}

// TestMistakesInFiles: each error is one sentence that names the file, the field
// and the fix.
func TestMistakesInFiles(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"", `kind is ""`},
		{"kind: [", "did not find expected"},
		{"- a\n", "it is not a list of fields"},
		{"kind: Pod\napiVersion: v1\n", `kind is "Pod": write kind: KubeProxyConfiguration`},
		{"kind: KubeProxyConfiguration\napiVersion: v1\n", `apiVersion is "v1": write apiVersion: kubeproxy.config.k8s.io/v1alpha1`},
		{header + "\ta: b\n", ": yaml: line 3: found a tab"},
		{header + "configSyncPeriod: 30\n", `configSyncPeriod is a number: give text, as "30s" for a duration`},
		{header + "conntrack: {tcpCloseWaitTimeout: 1x}\n", `conntrack.tcpCloseWaitTimeout is no duration (unknown unit "x" in duration "1x"): give one like 30s`},
		{header + "iptables: {masqueradeBit: many}\n", "iptables.masqueradeBit is a string: give a whole number of at most 32 bits"},
		{header + "oomScoreAdj: 99999999999\n", "oomScoreAdj is a number: give a whole number of at most 32 bits"},
		{header + "featureGates: A=true\n", "featureGates is a string: give a map, name: value"},
		{header + "nodePortAddresses: 10.0.0.0/8\n", "nodePortAddresses is a string: give a list"},
		{header + "conntrack: 5\n", "conntrack is a number: give fields of its own"},
		{header + "mode: [a]\n", "mode is a list: give a word"},
		{header + "bindAddress: {}\n", "bindAddress is a map of fields: give text"},
		{header + "profiling: {}\nenableProfiling: perhaps\n", "enableProfiling is a string: give true or false"},
		{header + "clientConnection: {contentType: text/html}\n", `clientConnection.contentType "text/html" is unknown: give application/vnd.kubernetes.protobuf`},
		{header + "clientConnection: {acceptContentTypes: \"application/json,text/html\"}\n", `clientConnection.acceptContentTypes "text/html" is unknown: give a list of`},
		{header + "ipvs: {scheduler: fastest}\n", `ipvs.scheduler "fastest" is no scheduler of IPVS`},
		{header + "hostnameOverride: a b\n", `hostnameOverride "a b" cannot be the name of a Node`},
		{header + "clientConnection: {qps: fast}\n", "clientConnection.qps is a string: give a number"},
		{header + "logging: {options: {text: {infoBufferSize: a}}}\n", "logging.options.text.infoBufferSize is wrong: quantities must match"},
		{header + "mode: bridge\n", `mode "bridge" is unknown: give userspace`},
		{header + "mode: kernelspace\n", `mode "kernelspace" is not one of Sluice's: give userspace`},
		{header + "bindAddress: node\n", "bindAddress"},
		{header + "metricsBindAddress: node:1\n", "metricsBindAddress"},
		{header + "clusterCIDR: 10.0.0.0\n", `clusterCIDR "10.0.0.0" is not an address range`},
		{header + "ipvs: {excludeCIDRs: [x]}\n", "ipvs.excludeCIDRs"},
		{header + "ipvs: {tcpTimeout: -1s}\n", "ipvs.tcpTimeout"},
		{header + "iptables: {syncPeriod: 1s, minSyncPeriod: 2s}\n", "iptables.minSyncPeriod"},
		{header + "nftables: {syncPeriod: 1s, minSyncPeriod: 2s}\n", "nftables.minSyncPeriod"},
		{header + "nftables: {syncPeriod: 1ms}\n", "nftables.syncPeriod"},
		{header + "nftables: {masqueradeBit: 32}\n", "nftables.masqueradeBit 32: give 0 to 31"},
		{header + "conntrack: {min: -1}\n", "conntrack.min"},
		{header + "oomScoreAdj: 2000\n", "oomScoreAdj"},
		{header + "detectLocalMode: BridgeInterface\n", "detectLocal.bridgeInterface"},
		{header + "portRange: x\n", "portRange"},
		{header + "udpIdleTimeout: -1s\n", "udpIdleTimeout"},
		{header + "healthzBindAddress: 0.0.0.0:0\n", "healthzBindAddress"},
		{header + "metricsBindAddress: 127.0.0.1:0\n", "metricsBindAddress"},
		{header + "logging: {format: xml}\n", "logging.format"},
		{header + "clientConnection: {kubeconfig: /no/such/file}\n", "/no/such/file: " + absent()},
		{header + "clientConnection: {burst: -1}\n", "clientConnection.burst"},
	} {
		file := write(t, "f.yaml", test.text)
		_, err := Parse([]string{"--config", file})
		if err == nil || !strings.HasPrefix(err.Error(), file+": ") || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want one sentence with %q", test.text, err, test.want)
		}
	}
}

// TestWrite: what --write-config-to writes is complete, and means the same.
func TestWrite(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out.yaml")
	file, _ := sample(t, "large-ipvs.yaml")
	for _, args := range [][]string{{"--config", file}, {"--cluster-cidr=10.244.0.0/16", "--udp-timeout=3s", "--hostname-override=N", "--healthz-port=1"}} {
		c := parse(t, append(args, "--write-config-to", out)...)
		if err := c.Write(); err != nil {
			t.Fatal(err)
		}
		again := parse(t, "--config", out)
		again.File, again.Action.WriteConfigTo = c.File, c.Action.WriteConfigTo
		if len(again.Warnings) > 0 || !again.means(c) {
			t.Errorf("warnings %q, again %+v\nwritten by %+v", again.Warnings, again, c)
		}
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := yaml.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]any{"mode": "userspace", "udpIdleTimeout": "3s", "healthzBindAddress": "0.0.0.0:1", "hostnameOverride": "n",
		"oomScoreAdj": -999., "detectLocalMode": "ClusterCIDR", "configSyncPeriod": "15m0s"} {
		if fields[field] != want {
			t.Errorf("%s = %v, want %v", field, fields[field], want)
		}
	}
	c := parse(t, "--write-config-to", filepath.Join(out, "x"))
	if err := c.Write(); err == nil || !strings.Contains(err.Error(), "--write-config-to") {
		t.Errorf("Write = %v", err)
	}
}

// FuzzDocument: whatever the file holds, reading it ends in an error or in a
// Config, and what is written of it reads the same.
func FuzzDocument(f *testing.F) {
	samples, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(samples) == 0 {
		f.Fatalf("no samples: %v", err)
	}
	for _, name := range samples {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	for _, text := range []string{header, header + "a: &a [*a]", header + "mode: ipvs\nmode: x", "{}", header + "logging: {flushFrequency: 5}", header + "clusterCIDR: ','"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		d, _, err := decodeDocument(text)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
			return
		}
		d.setDefaults()
		s, _ := declare()
		s.Document = d
		_ = s.check() // it may be wrong, but is not to panic

		first, err := s.Document.encode()
		if err != nil {
			t.Fatal(err)
		}
		again, warnings, err := decodeDocument(first)
		if err != nil || len(warnings) > 0 {
			t.Fatalf("what was written cannot be read: %v, %q\n%s", err, warnings, first)
		}
		second, err := again.encode()
		if err != nil || !bytes.Equal(first, second) {
			t.Errorf("written once (%v):\n%s\nand twice:\n%s", err, first, second)
		}
	})
}
