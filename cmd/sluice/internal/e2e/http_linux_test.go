package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// send sends a request to the program, on the node.
func send(l *lab.Lab, method, url, body string) (int, string) {
	l.T.Helper()
	out := strings.TrimSpace(l.Output("curl", "--silent", "--max-time", "30", "--request", method, "--data", body, "--write-out", "\n%{http_code}", url))
	at := strings.LastIndex(out, "\n")
	var code int
	if err := json.Unmarshal([]byte(out[at+1:]), &code); err != nil {
		l.T.Fatalf("%s %s: %s", method, url, out)
	}
	return code, out[:max(at, 0)]
}

// TestNodeLeaves: load balancers are told to turn away from a node that is about to
// go, and the kubelet is not told to restart anything.
func TestNodeLeaves(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	l.ServeWeb()
	node := func(more string) string { return "apiVersion: v1\nkind: Node\nmetadata:\n  name: node\n" + more }
	probe := func(path string) int { code, _ := l.Get("http://127.0.0.1:10256" + path); return code }
	l.Write("node.yaml", node(""))
	l.Start("--hostname-override", "node")
	for what, more := range map[string]string{
		"marked by the autoscaler": "spec:\n  taints:\n  - key: ToBeDeletedByClusterAutoscaler\n    effect: NoSchedule\n",
		"being deleted":            "  deletionTimestamp: \"2026-01-02T03:04:05Z\"\n",
	} {
		l.Write("node.yaml", node(more))
		l.Eventually("/healthz fails on a node "+what, func() bool { return probe("/healthz") == http.StatusServiceUnavailable })
		if code, body := l.Get("http://127.0.0.1:10256/healthz"); !strings.Contains(body, `"nodeEligible":false,"healthy":true,"status":{"IPv4":{"lastUpdated":"`) {
			t.Errorf("/healthz on a node %s = %d, %s", what, code, body)
		}
		if code := probe("/livez"); code != http.StatusOK {
			t.Errorf("/livez on a node %s = %d, want 200", what, code)
		}
		if name, err := l.Client.Who(lab.WebAddr); err != nil {
			t.Errorf("a node %s serves no more: %q, %v", what, name, err)
		}
		l.Write("node.yaml", node(""))
		l.Eventually("/healthz succeeds again", func() bool { return probe("/healthz") == http.StatusOK })
	}
	if n := l.Metric(`kubeproxy_proxy_healthz_total{code="503"}`); n < 2 {
		t.Errorf("%v answers 503 counted", n)
	}
}

// TestInspect: what people ask the running program.
func TestInspect(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	l.ServeWeb()
	l.Start("--profiling", "--udp-timeout", "7s", "--metrics-endpoints=2")
	const at = "http://127.0.0.1:10249"
	if _, mode := l.Get(at + "/proxyMode"); mode != "userspace" {
		t.Errorf("/proxyMode = %q", mode)
	}
	var config struct {
		Proxy struct {
			Kind, UDPIdleTimeout string
		} `json:"kubeproxy.config.k8s.io"`
	}
	_, page := l.Get(at + "/configz")
	if err := json.Unmarshal([]byte(page), &config); err != nil || config.Proxy.Kind != "KubeProxyConfiguration" || config.Proxy.UDPIdleTimeout != "7s" {
		t.Errorf("/configz = %s, %v", page, err)
	}
	for path, want := range map[string]string{"/statusz": "\nPaths: /configz /debug /", "/flagz": "\nudp-timeout=7s\n"} {
		if code, page := l.Get(at + path); code != http.StatusOK || !strings.Contains(page, want) {
			t.Errorf("%s = %d, %s", path, code, page)
		}
	}
	if code, page := l.Get(at + "/debug/pprof/goroutine?debug=1"); code != http.StatusOK || !strings.Contains(page, "goroutine profile") {
		t.Errorf("pprof = %d, %s", code, page)
	}
	if name, err := l.Client.Who(lab.WebAddr); err != nil {
		t.Errorf("%q, %v", name, err)
	}
	for series, want := range map[string]float64{
		`kubeproxy_sync_proxy_rules_service_changes_total`:                                                                         1,
		`kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"}`:                                                      1,
		`kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"}`:                                                 1,
		`sluice_service_picks_total{protocol="TCP",service_name="web",service_namespace="default",service_port=""}`:                1,
		`sluice_service_endpoints{protocol="TCP",service_name="web",service_namespace="default",service_port="",state="eligible"}`: 3,
	} {
		if got := l.Metric(series); got != want {
			t.Errorf("%s = %v, want %v", series, got, want)
		}
	}
	if n := l.Metric("sluice_conntrack_entries_limit"); n < 1 {
		t.Errorf("the conntrack table may have %v entries", n)
	}
	l.Metric(`sluice_endpoint_picks_total{endpoint="` + netip.AddrPortFrom(l.Pods[0].Addr4, 8080).String() +
		`",protocol="TCP",service_name="web",service_namespace="default",service_port=""}`)
	out := `sluice_service_bytes_total{direction="out",protocol="TCP",service_name="web",service_namespace="default",service_port=""}`
	l.Eventually("the bytes of the answer are counted", func() bool { return l.Metric(out) >= float64(len("pod-0")) })

	// Debug lines come when asked for, and stop.
	change := func(port string) {
		l.Write("more.yaml", testbed.ServiceManifest("more", "10.96.0.99:"+port, "TCP", ""))
	}
	if code, answer := send(l, "PUT", at+"/debug/flags/v", "4"); code != http.StatusOK || !strings.Contains(answer, "verbosity to 4") {
		t.Fatalf("PUT = %d, %s", code, answer)
	}
	change("80")
	l.Eventually("debug lines are logged", func() bool { return strings.Contains(l.Log.String(), "DEBUG") })
	if code, answer := send(l, "PUT", at+"/debug/flags/v", "0"); code != http.StatusOK {
		t.Fatalf("PUT = %d, %s", code, answer)
	}
	before := strings.Count(l.Log.String(), "DEBUG")
	change("81")
	l.Eventually("the change is in force", func() bool {
		return l.Metric(`kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"}`) >= 3
	})
	if n := strings.Count(l.Log.String(), "DEBUG"); n != before {
		t.Errorf("%d debug lines after they were switched off", n-before)
	}
}

// TestLateAddresses: what others have is told, and served as soon as it is free.
func TestLateAddresses(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1})
	l.Write("web.yaml", testbed.ServiceManifest("web", lab.WebAddr, "TCP", ""))
	squatter, err := l.Node.Listen(t.Context(), "tcp4", "127.0.0.1:10249")
	testbed.Check(t, err)
	l.Start()
	for _, reason := range []string{"FailedToStartMetricServer", "Starting"} {
		if !strings.Contains(l.Log.String(), reason) {
			t.Errorf("the log has no event %s", reason)
		}
	}
	squatter.Close()
	l.Eventually("metrics are served", func() bool { code, _ := l.Get("http://127.0.0.1:10249/metrics"); return code == http.StatusOK })
}

// TestHealthCheckPort: a load balancer reaches the health checks of Services past a
// firewall on the node that lets in nothing, on each data path.
func TestHealthCheckPort(t *testing.T) {
	testbed.VM(t)
	t.Parallel()
	for _, mode := range []string{"userspace", "iptables", "ipvs"} {
		t.Run(mode, func(t *testing.T) {
			lab.NeedMode(t, mode)
			l := lab.New(t, testbed.Config{})
			l.Mode, l.By = mode, "iptables" // nftables cannot let anything past a firewall
			if mode == "iptables" {
				l.By = "auto" // which knows that
			}
			l.Write("node.yaml", nodeManifest)
			l.Write("web.yaml", `apiVersion: v1
kind: Service
metadata:
  name: web
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.80
  externalTrafficPolicy: Local
  healthCheckNodePort: 32080
  ports:
  - port: 80
    nodePort: 30080
`, testbed.SliceManifest("web", 1, 8080, "TCP", testbed.Addrs(l.Pods...)...))
			l.Output("iptables", "-P", "INPUT", "DROP")
			l.Output("iptables", "-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT")
			l.Output("iptables", "-A", "INPUT", "-i", "lo", "-j", "ACCEPT")
			l.Start("--hostname-override", "node")
			client := http.Client{Transport: &http.Transport{DialContext: l.Client.Dial}, Timeout: testbed.Patience}
			defer client.CloseIdleConnections()
			r, err := client.Get(fmt.Sprintf("http://%s:32080/", l.Node.Addr4))
			testbed.Check(t, err)
			_ = r.Body.Close()
			if r.StatusCode != http.StatusServiceUnavailable { // no endpoint says that it is on this node
				t.Errorf("the health check says %s", r.Status)
			}
		})
	}
}
