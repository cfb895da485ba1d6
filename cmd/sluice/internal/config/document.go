package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	yamlv3 "go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

// Document is kube-proxy's configuration file (KubeProxyConfiguration, v1alpha1):
// the fields that it has today, and those of releases up to 1.25 that still have a
// meaning here.
type Document struct {
	v1alpha1.KubeProxyConfiguration `json:",inline"`

	UDPIdleTimeout    metav1.Duration `json:"udpIdleTimeout,omitzero"`     // until 1.25; 0 as for --udp-timeout
	ResourceContainer string          `json:"resourceContainer,omitempty"` // until 1.15; no meaning
}

const (
	documentKind    = "KubeProxyConfiguration"
	documentVersion = "kubeproxy.config.k8s.io/v1alpha1"
)

const (
	healthzPort = 10256
	metricsPort = 10249
)

// readDocument reads the file of --config and fills in what it leaves out: given are the fields that it has. A
// warning is a sentence about what is ignored.
func readDocument(name string) (d Document, given map[string]any, warnings []string, err error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return d, nil, nil, fmt.Errorf("--config: %w: give a file that Sluice may read", err)
	}
	if d, warnings, err = decodeDocument(data); err == nil {
		err = yaml.Unmarshal(data, &given)
	}
	if err != nil {
		return d, nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	for i, w := range warnings {
		warnings[i] = name + ": " + w
	}
	d.setDefaults()
	return d, given, warnings, nil
}

// decodeDocument decodes YAML or JSON. As in kube-proxy, fields that are unknown
// or given twice are no error: files must outlive the releases that know them.
func decodeDocument(data []byte) (d Document, warnings []string, err error) {
	isYAML := !json.Valid(data)
	scheme := runtime.NewScheme() // empty: the document is the only type there is
	options := kjson.SerializerOptions{Yaml: isYAML, Strict: true}
	decoder := kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, scheme, scheme, options)
	_, _, err = decoder.Decode(data, nil, &d)
	if strict, ok := runtime.AsStrictDecodingError(err); ok {
		for _, e := range strict.Errors() {
			warnings = append(warnings, oneLine(e)+": it is ignored")
		}
	} else if err != nil {
		return d, nil, locate(data, err)
	}
	if isYAML && documents(data) > 1 {
		warnings = append(warnings, "only the first document of the file is read")
	}
	switch {
	case d.Kind != documentKind:
		return d, nil, fmt.Errorf("kind is %q: write kind: %s", d.Kind, documentKind)
	case d.APIVersion != documentVersion:
		return d, nil, fmt.Errorf("apiVersion is %q: write apiVersion: %s", d.APIVersion, documentVersion)
	}
	return d, warnings, nil
}

// documents counts the YAML documents with content.
func documents(data []byte) (n int) {
	for d := yamlv3.NewDecoder(bytes.NewReader(data)); ; {
		var doc yamlv3.Node
		err := d.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			return n + 1
		}
		if doc.Content[0].Tag != "!!null" {
			n++
		}
	}
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// locate names the field that a decoding error is about, which the decoder often
// omits, by decoding each field alone.
func locate(data []byte, err error) error {
	var whole any
	if e := yaml.Unmarshal(data, &whole); e != nil {
		return errors.New(strings.TrimPrefix(oneLine(e), "error converting YAML to JSON: "))
	}
	fields, ok := whole.(map[string]any)
	if !ok {
		return fmt.Errorf("it is not a list of fields: begin it with kind: %s", documentKind)
	}
	path, cause := firstBad(fields)
	if cause == nil {
		return errors.New(oneLine(err))
	}
	return fmt.Errorf("%s %s", path, mistake(oneLine(cause)))
}

// mistyped is how the decoder reports a value of another type.
var mistyped = regexp.MustCompile(`cannot unmarshal (\w+).* into Go .* of type (\S+)$`)

// mistake says in words of YAML what the decoder says in those of Go.
func mistake(text string) string {
	if rest, ok := strings.CutPrefix(text, "time: "); ok {
		return "is no duration (" + rest + "): give one like 30s or 1h30m"
	}
	m := mistyped.FindStringSubmatch(text)
	if m == nil {
		return "is wrong: " + strings.TrimPrefix(text, "json: ")
	}
	is, want := "a "+m[1], "fields of its own"
	switch m[1] {
	case "object":
		is = "a map of fields"
	case "array":
		is = "a list"
	}
	switch kind := m[2]; {
	case kind == "bool":
		want = "true or false"
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
		want = "a whole number of at most " + strings.TrimLeft(kind, "uint") + " bits"
	case strings.HasPrefix(kind, "float"):
		want = "a number"
	case strings.HasPrefix(kind, "[]"):
		want = "a list"
	case strings.HasPrefix(kind, "map["):
		want = "a map, name: value"
	case kind == "string", strings.HasSuffix(kind, "Mode"):
		want = `text, as "30s" for a duration`
		if kind != "string" {
			want = "a word"
		}
	}
	return "is " + is + ": give " + want
}

// firstBad returns the first field, by name, that a document cannot have so, and why.
func firstBad(fields map[string]any, within ...string) (string, error) {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		path, one := append(within, name), fields[name]
		for _, outer := range slices.Backward(path) {
			one = map[string]any{outer: one}
		}
		text, err := json.Marshal(one)
		if err == nil {
			err = utiljson.Unmarshal(text, new(Document))
		}
		if err == nil {
			continue
		}
		if inner, ok := fields[name].(map[string]any); ok {
			if path, cause := firstBad(inner, path...); cause != nil {
				return path, cause
			}
		}
		return strings.Join(path, "."), err
	}
	return "", nil
}

// setDefaults fills in what is left out, with kube-proxy's values. An empty
// address of a server is filled in as well, since kubeadm writes such files and
// means the default.
func (d *Document) setDefaults() {
	orDefault(&d.APIVersion, documentVersion)
	orDefault(&d.Kind, documentKind)
	orDefault(&d.BindAddress, "0.0.0.0")
	healthz, metrics := "0.0.0.0", "127.0.0.1"
	if a, err := netip.ParseAddr(d.BindAddress); err == nil && a.Is6() {
		healthz, metrics = "::", "::1"
	}
	orDefault(&d.HealthzBindAddress, healthz)
	orDefault(&d.MetricsBindAddress, metrics)
	d.HealthzBindAddress = withPort(d.HealthzBindAddress, healthzPort)
	d.MetricsBindAddress = withPort(d.MetricsBindAddress, metricsPort)

	orDefault(&d.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	orDefault(&d.ClientConnection.QPS, 5)
	orDefault(&d.ClientConnection.Burst, 10)
	orDefault(&d.ConfigSyncPeriod.Duration, 15*time.Minute)

	orDefault(&d.IPTables.SyncPeriod.Duration, 30*time.Second)
	orDefault(&d.IPTables.MinSyncPeriod.Duration, min(time.Second, d.IPTables.SyncPeriod.Duration))
	orDefault(&d.NFTables.SyncPeriod.Duration, 30*time.Second)
	orDefault(&d.NFTables.MinSyncPeriod.Duration, min(time.Second, d.NFTables.SyncPeriod.Duration))
	orDefault(&d.IPVS.SyncPeriod.Duration, 30*time.Second)
	orDefault(&d.IPTables.MasqueradeBit, new(int32(14)))
	orDefault(&d.IPTables.LocalhostNodePorts, new(true))
	orDefault(&d.NFTables.MasqueradeBit, new(int32(14)))

	orDefault(&d.OOMScoreAdj, new(int32(-999)))
	orDefault(&d.Conntrack.MaxPerCore, new(int32(32*1024)))
	orDefault(&d.Conntrack.Min, new(int32(128*1024)))
	orDefault(&d.Conntrack.TCPEstablishedTimeout, &metav1.Duration{Duration: 24 * time.Hour})
	orDefault(&d.Conntrack.TCPCloseWaitTimeout, &metav1.Duration{Duration: time.Hour})
	logsapi.SetRecommendedLoggingConfiguration(&d.Logging)
}

func orDefault[T comparable](p *T, value T) { *p = cmp.Or(*p, value) }

// Own returns the addresses of health and metrics, at which the program itself answers.
func (d *Document) Own() (out []netip.AddrPort) {
	for _, text := range []string{d.HealthzBindAddress, d.MetricsBindAddress} {
		if a, err := netip.ParseAddrPort(text); err == nil && a.Port() != 0 {
			out = append(out, a)
		}
	}
	return out
}

// encode returns the document as YAML.
func (d *Document) encode() ([]byte, error) {
	text, err := yaml.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", documentKind, err)
	}
	return text, nil
}

// Write writes Document to the file of --write-config-to. kube-proxy's releases
// since 1.26 read it too, with a warning about the field udpIdleTimeout, unless the
// mode is one that they no longer have.
func (c *Config) Write() error {
	text, err := c.Document.encode()
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.Action.WriteConfigTo, text, 0o644); err != nil {
		return fmt.Errorf("--write-config-to: %w: give a file that Sluice may write", err)
	}
	return nil
}
