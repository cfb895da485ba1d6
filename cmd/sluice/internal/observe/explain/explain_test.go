package explain

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const manifests = `
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: default},
  spec: {clusterIP: 10.96.0.80, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: sig, namespace: default},
  spec: {clusterIP: 10.96.0.81, ports: [{port: 5, protocol: SCTP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, ports: [{port: 8080}],
  metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}},
  endpoints: [{addresses: [10.244.1.10]}, {addresses: [10.244.1.11]}]}
---
{apiVersion: v1, kind: Service, metadata: {name: loop, namespace: default},
  spec: {clusterIP: 10.96.0.82, ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, ports: [{port: 80}],
  metadata: {name: loop-1, namespace: default, labels: {kubernetes.io/service-name: loop}},
  endpoints: [{addresses: [10.96.0.82]}]}
---
{apiVersion: v1, kind: Node, metadata: {name: node}, status: {addresses: [{type: InternalIP, address: 192.0.2.10}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: port, namespace: default},
  spec: {type: NodePort, clusterIP: 10.96.0.83, ports: [{port: 80, nodePort: 30080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, ports: [{port: 30080}],
  metadata: {name: port-1, namespace: default, labels: {kubernetes.io/service-name: port}},
  endpoints: [{addresses: [192.0.2.10]}]}
`

// TestRun: what is said of a Service, and of arguments that are wrong.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	file, rules := filepath.Join(dir, "web.yaml"), filepath.Join(dir, "rules")
	for name, text := range map[string]string{file: manifests, rules: "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	metrics := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `sluice_setting_info{reason="detected",setting="packet_filter",value="nftables"} 1`+"\n"+
			`sluice_setting_info{reason="requested",setting="sctp_engine",value="packet"} 1`+"\n")
	}))
	defer metrics.Close()
	from := "--manifests=" + file + " --hostname-override=node "
	at := "--metrics-bind-address=" + strings.TrimPrefix(metrics.URL, "http://")
	for args, want := range map[string]string{
		"--help":             "Usage:",
		from + "default/web": "2 of 2 endpoints eligible",
		from + "--proxy-mode=ipvs tcp 10.96.0.80:80":                     "data path ipvs: --proxy-mode",
		from + "--proxy-mode=iptables --rules=" + rules + " default/web": "the first packet from 192.0.2.1 to 10.96.0.80:80 is",
		from + "--proxy-mode=auto default/web":                           "data path nftables: auto: it has all that is requested",
		from + "--proxy-mode=nftables default/web":                       "  map services: 10.96.0.80 . tcp . 80 : goto svc-",
		from + "--proxy-mode=queue default/web":                          "by table ip sluice-queued, unless flags say otherwise, the first packet",
		from + "default/loop":                                            "it leads back to Sluice",
		from + "default/port":                                            "192.0.2.10:30080 not eligible: it leads back to Sluice",
		from + "udp 10.96.0.80:80":                                       "belongs to no service",
		from + at + " default/web":                                       "packet filter nftables: the kernel can",
		from + at + " default/sig":                                       "SCTP engine packet: requested by --sctp-engine",
		from + "--metrics-bind-address= default/sig":                     "SCTP engine not asked for",
		"--api-socket=" + dir + "/no.sock default/web": "error: no running Sluice answers at " + dir +
			"/no.sock, since there is no such socket",
		"--api-socket=" + file + "/no.sock default/web": "or give --manifests with a file or folder",
		"--output=xml default/web":                      `error: --output "xml" is unknown`,
		from + "192.0.2.1 10.96.0.80:80":                "TCP 10.96.0.80:80 belongs to default/web",
		from + "web":                                    `error: "web" is neither a Service nor an address`,
		from:                                            "error: name a Service",
		from + "default/missing":                        "error: no Service default/missing",
		from + "http 10.96.0.80:80":                     `error: "http" "10.96.0.80:80"`,
		from + "--proxy-mode=ebpf a/b":                  `error: --proxy-mode "ebpf"`,
		from + "--client=me default/web":                `error: --client "me" is not an IP address`,
		from + "--no-such-flag default/web":             "error: unknown flag",
	} {
		var out bytes.Buffer
		if err := Run(strings.Fields(args), &out); err != nil {
			out.WriteString("error: " + err.Error())
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("explain %s says\n%s\nwant %q", args, &out, want)
		}
	}
}
