package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func testdata(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The files in testdata are what the programs wrote: wrk 4.1, iperf3 3.12.

func TestParseWrk(t *testing.T) {
	got, err := parseWrk(testdata(t, "wrk.txt"))
	if err != nil {
		t.Fatal(err)
	}
	want := wrkResult{requests: 43465, errors: 3, seconds: 1.001912, p50: 892, p99: 15648, p999: 25052}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, wrong := range []string{
		"", "unable to connect to 10.96.0.10:80 Connection refused\n",
		"RESULT requests=1 duration_us=x bytes=1 errors=0 p50=1 p99=1 p999=1\n",
		"RESULT requests=1 duration_us=1 bytes=1 errors=0 p50=1 p99=1\n",
		"RESULT requests=0 duration_us=0 bytes=0 errors=0 p50=0 p99=0 p999=0\n",
	} {
		if r, err := parseWrk(wrong); err == nil {
			t.Errorf("%q gave %+v", wrong, r)
		}
	}
}

func TestParseIperf(t *testing.T) {
	got, err := parseIperf([]byte(testdata(t, "iperf3-bidir.json")))
	if err != nil {
		t.Fatal(err)
	}
	want := iperfResult{bytes: 492044288 + 888668160, seconds: 1.014848, retransmits: 28 + 13}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, wrong := range []string{"", "{}", `{"end": {"sum_sent": {}, "sum_received": {}}}`} {
		if r, err := parseIperf([]byte(wrong)); err == nil {
			t.Errorf("%q gave %+v", wrong, r)
		}
	}
	if _, err := parseIperf([]byte(testdata(t, "iperf3-error.json"))); err == nil || !strings.Contains(err.Error(), "Connection refused") {
		t.Errorf("the error of iperf3 is given as %v", err)
	}
}

func TestParseStat(t *testing.T) {
	const stat = "cpu  489369 35941 441636 1351451 7226 0 35807 958 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\ncpu1 1 2 x 4 5 6 7 8 9 10\nintr 1\n"
	all, err := parseStat(stat, "cpu")
	if want := (ticks{busy: 489369 + 35941 + 441636 + 35807, idle: 1351451 + 7226, stolen: 958}); err != nil || all != want {
		t.Errorf("got %+v, %v", all, err)
	}
	one, err := parseStat(stat, "cpu0")
	if want := (ticks{busy: 1 + 2 + 3 + 6 + 7, idle: 9, stolen: 8}); err != nil || one != want {
		t.Errorf("got %+v, %v", one, err)
	}
	if d := one.minus(ticks{busy: 9, idle: 9}); d.share(d.busy) != 10.0/18 {
		t.Errorf("a share of %v", d.share(d.busy))
	}
	if (ticks{}).share(0) != 0 {
		t.Error("no time has a share")
	}
	for _, core := range []string{"cpu1", "cpu2", "intr"} {
		if got, err := parseStat(stat, core); err == nil {
			t.Errorf("%s gave %+v", core, got)
		}
	}
}

func TestParseOthers(t *testing.T) {
	const dev = "Inter-|   Receive\n face |bytes    packets\n    lo:     0       0\n  eth0: 1234567 12 0\n"
	if n, err := parseReceived(dev, "eth0"); n != 1234567 || err != nil {
		t.Errorf("%v, %v", n, err)
	}
	if _, err := parseReceived(dev, "cni0"); err == nil {
		t.Error("an interface that is not there was read")
	}
	if v := field("processor\t: 0\nmodel name\t: AMD EPYC: x\nmodel name\t: other\n", "model name"); v != "AMD EPYC: x" {
		t.Errorf("the model is %q", v)
	}
	if v := firstLine("\n\n HAProxy version 2.6\nmore"); v != "HAProxy version 2.6" {
		t.Errorf("the first line is %q", v)
	}
	if v := firstLine(""); v != "unknown" {
		t.Errorf("nothing is %q", v)
	}
}

// TestConfigurations compares the configuration of each system with what it should be: the
// same addresses, the same servers, no limit that only one has.
func TestConfigurations(t *testing.T) {
	list := services([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3"})
	var relay strings.Builder
	c := relayConfig(list)
	for _, f := range append(c.TCP, c.UDP...) {
		relay.WriteString(f.Listen + " " + strings.Join(f.Backends, ",") + "\n")
	}
	for name, test := range map[string]struct {
		text     string
		has, not []string
	}{
		"manifests":   {manifests(list), []string{"clusterIP: 10.96.0.10", "protocol: UDP", "addresses: [10.0.0.3]"}, nil},
		"haproxy":     {haproxyConfig(list, 1, 7920), []string{"maxconn 7920", "splice-auto", "bind :30080 ", "server s2 10.0.0.3:8080", "server s0 10.0.0.1:5201"}, []string{"30082", "10.0.0.2:5201"}},
		"nginx":       {nginxConfig(list, 1, "/d", "/m.so", 100), []string{"load_module /m.so;", "worker_connections 200;", "listen 30082 udp", "proxy_timeout 250ms", "server 10.0.0.3:8081;"}, []string{"10.0.0.2:53;"}},
		"built in":    {nginxConfig(list, 1, "/d", "", 100), []string{"stream {"}, []string{"load_module"}},
		"one thread":  {haproxyConfig(list, 1, 100), []string{"nbthread 1\n"}, nil},
		"two threads": {haproxyConfig(list, 2, 100), []string{"nbthread 2\n"}, nil},
		"one worker":  {nginxConfig(list, 1, "/d", "", 100), []string{"master_process off;"}, []string{"worker_processes", "reuseport"}},
		"two workers": {nginxConfig(list, 2, "/d", "", 100), []string{"worker_processes 2;", "listen 30080 reuseport backlog", "udp reuseport"}, []string{"master_process"}},
		"relay":       {relay.String(), []string{":30080 10.0.0.1:8080,10.0.0.2:8080,10.0.0.3:8080", ":30084 10.0.0.1:53\n"}, nil},
		"redirect":    {redirectRules(list), []string{"*nat\n", "-A PREROUTING -d 10.96.0.12/32 -p udp --dport 82 -j REDIRECT --to-ports 30082\n", "COMMIT\n"}, nil},
		"dnat": {dnatRules(list), []string{
			"-d 10.96.0.10/32 -p tcp --dport 80 -m statistic --mode random --probability 0.3333333333 -j DNAT --to-destination 10.0.0.1:8080",
			"--probability 0.5000000000 -j DNAT --to-destination 10.0.0.2:8080", "--dport 80 -j DNAT --to-destination 10.0.0.3:8080", "--dport 53 -j DNAT"}, nil},
		"ipvs": {ipvsRules(list), []string{"-A -t 10.96.0.10:80 -s rr\n", "-a -u 10.96.0.12:82 -r 10.0.0.2:8082 -m\n"}, nil},
	} {
		for _, want := range test.has {
			if !strings.Contains(test.text, want) {
				t.Errorf("%s: no %q in\n%s", name, want, test.text)
			}
		}
		for _, wrong := range test.not {
			if strings.Contains(test.text, wrong) {
				t.Errorf("%s: there is %q in\n%s", name, wrong, test.text)
			}
		}
	}
}
