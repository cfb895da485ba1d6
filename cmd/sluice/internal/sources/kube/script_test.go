package kube

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// TestScripts runs testdata/*.txt. A script is a sequence of paragraphs, each a
// comment of lines that begin with #, or a step:
//
//	case NAME                    forget all objects and options
//	then NAME                    go on from the step before
//	options NAME=VALUE...        node, zone, proxy, pods, addresses; lists by comma
//	delete KIND NAMESPACE/NAME   any number of times
//	kind: ...                    objects, separated by ---, that replace those of
//	                             the same name; only the fields that matter
//	----
//	what Convert makes of all objects
//
// Of each step it is also tested that a Table takes the whole result, that Convert
// does not write to the objects, and that neither their order matters nor what is
// trimmed of them.
func TestScripts(t *testing.T) {
	testbed.Scripts(t, func(t *testing.T, script string) string {
		return runScript(t, strings.TrimSuffix(script, "\n")) + "\n"
	})
}

// runScript returns the script with what its steps give.
func runScript(t *testing.T, script string) string {
	w := newWorld()
	paragraphs := strings.Split(script, "\n\n")
	for i, paragraph := range paragraphs {
		if strings.HasPrefix(paragraph, "#") {
			continue
		}
		step, want, ok := strings.Cut(paragraph, "\n----")
		if !ok {
			t.Fatalf("no ---- in %q", paragraph)
		}
		title, body, _ := strings.Cut(step, "\n")
		command, name, _ := strings.Cut(title, " ")
		switch command {
		case "case":
			w = newWorld()
		case "then":
		default:
			t.Fatalf("%q is neither case nor then", title)
		}
		w.change(t, body)
		t.Run(name, func(t *testing.T) {
			got := w.convert(t)
			paragraphs[i] = step + "\n----\n" + got
			if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), got); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
	return strings.Join(paragraphs, "\n\n")
}

// world is what a script has made so far.
type world struct {
	objects map[string]any // by kind, namespace and name
	options Options
	again   Converter // sees every step, with what does not change as the same objects
}

func newWorld() *world { return &world{objects: make(map[string]any)} }

// change executes the body of a step.
func (w *world) change(t *testing.T, body string) {
	t.Helper()
	for body != "" {
		line, rest, _ := strings.Cut(body, "\n")
		fields := strings.Fields(line)
		switch fields[0] {
		case "options":
			w.setOptions(t, fields[1:])
		case "delete":
			key := fields[1] + " " + fields[2]
			if w.objects[key] == nil {
				t.Fatalf("there is no %s", key)
			}
			delete(w.objects, key)
		default:
			for document := range strings.SplitSeq(body, "\n---\n") {
				w.apply(t, document)
			}
			return
		}
		body = rest
	}
}

func (w *world) setOptions(t *testing.T, assignments []string) {
	t.Helper()
	for _, assignment := range assignments {
		name, value, _ := strings.Cut(assignment, "=")
		switch name {
		case "node":
			w.options.Facts.NodeName = value
		case "zone":
			w.options.Facts.Zone = value
		case "proxy":
			w.options.ServiceProxyName = value
		case "pods":
			for text := range strings.SplitSeq(value, ",") {
				w.options.Facts.PodCIDRs = append(w.options.Facts.PodCIDRs, netip.MustParsePrefix(text))
			}
		case "addresses":
			for text := range strings.SplitSeq(value, ",") {
				w.options.Facts.Addresses = append(w.options.Facts.Addresses, netip.MustParseAddr(text))
			}
		default:
			t.Fatalf("option %q", name)
		}
	}
}

func (w *world) apply(t *testing.T, document string) {
	t.Helper()
	var meta metav1.PartialObjectMetadata
	if err := yaml.Unmarshal([]byte(document), &meta); err != nil {
		t.Fatalf("decode %s: %v", document, err)
	}
	into, ok := map[string]any{
		"Service":       new(corev1.Service),
		"EndpointSlice": new(discoveryv1.EndpointSlice),
		//lint:ignore SA1019 see Objects.Endpoints
		"Endpoints": new(corev1.Endpoints),
		"Node":      new(corev1.Node),
	}[meta.Kind]
	if !ok {
		t.Fatalf("kind %q in %s", meta.Kind, document)
	}
	if err := yaml.UnmarshalStrict([]byte(document), into); err != nil {
		t.Fatalf("decode %s: %v", document, err)
	}
	w.objects[fmt.Sprintf("%s %s/%s", meta.Kind, meta.Namespace, meta.Name)] = into
}

// all returns copies of the objects in the order of their names; same the objects themselves.
func (w *world) all() flat {
	o := w.same()
	for i := range o.Services {
		o.Services[i] = o.Services[i].DeepCopy()
	}
	for i := range o.Slices {
		o.Slices[i] = o.Slices[i].DeepCopy()
	}
	for i := range o.Endpoints {
		o.Endpoints[i] = o.Endpoints[i].DeepCopy()
	}
	for i := range o.Nodes {
		o.Nodes[i] = o.Nodes[i].DeepCopy()
	}
	return o
}

func (w *world) same() flat {
	var o flat
	for _, key := range slices.Sorted(maps.Keys(w.objects)) {
		switch object := w.objects[key].(type) {
		case *corev1.Service:
			o.Services = append(o.Services, object)
		case *discoveryv1.EndpointSlice:
			o.Slices = append(o.Slices, object)
		//lint:ignore SA1019 see Objects.Endpoints
		case *corev1.Endpoints:
			o.Endpoints = append(o.Endpoints, object)
		case *corev1.Node:
			o.Nodes = append(o.Nodes, object)
		}
	}
	return o
}

// convert returns what o comes to when nothing was seen before.
// flat are Objects that may be changed.
type flat struct {
	Services []*corev1.Service
	Slices   []*discoveryv1.EndpointSlice
	//lint:ignore SA1019 see Objects.Endpoints
	Endpoints    []*corev1.Endpoints
	Nodes        []*corev1.Node
	ServiceCIDRs []*networkingv1.ServiceCIDR
}

func (o flat) lists() Objects {
	return Objects{lists.Of(slices.Clone(o.Services)), lists.Of(slices.Clone(o.Slices)), o.Endpoints, o.Nodes, o.ServiceCIDRs}
}

func convert(o flat, options Options) Result { return new(Converter).Convert(o.lists(), options) }

// convert returns what Convert makes of the objects, in words.
func (w *world) convert(t *testing.T) string {
	t.Helper()
	objects := w.all()
	result := convert(objects, w.options)
	got := describe(result)
	if _, err := lb.NewTable(result.Services.AppendTo(nil), result.Facts.Node); err != nil {
		t.Errorf("a table of the result: %v", err)
	}
	if diff := cmp.Diff(w.all(), objects); diff != "" {
		t.Errorf("Convert wrote to the objects (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(got, describe(w.again.Convert(w.same().lists(), w.options))); diff != "" {
		t.Errorf("a Converter that has seen the steps before differs:\n%s", diff)
	}
	if diff := cmp.Diff(got, describe(convert(trim(w.all()), w.options))); diff != "" {
		t.Errorf("trimmed objects give another result (-whole +trimmed):\n%s", diff)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 3 {
		shuffle(random, objects)
		if diff := cmp.Diff(got, describe(convert(objects, w.options))); diff != "" {
			t.Errorf("another order of the objects gives another result (-first +shuffled):\n%s", diff)
		}
	}
	return got
}

// trim trims the objects of an API server.
func trim(o flat) flat {
	for i, svc := range o.Services {
		o.Services[i] = TrimService(svc)
	}
	for i, slice := range o.Slices {
		o.Slices[i] = TrimSlice(slice)
	}
	for i, node := range o.Nodes {
		o.Nodes[i] = TrimNode(node)
	}
	return o
}

func shuffle(random *rand.Rand, o flat) {
	random.Shuffle(len(o.Services), func(i, j int) { o.Services[i], o.Services[j] = o.Services[j], o.Services[i] })
	random.Shuffle(len(o.Slices), func(i, j int) { o.Slices[i], o.Slices[j] = o.Slices[j], o.Slices[i] })
	random.Shuffle(len(o.Endpoints), func(i, j int) { o.Endpoints[i], o.Endpoints[j] = o.Endpoints[j], o.Endpoints[i] })
	random.Shuffle(len(o.Nodes), func(i, j int) { o.Nodes[i], o.Nodes[j] = o.Nodes[j], o.Nodes[i] })
}

// describe writes a result: each service, below it its addresses and its
// backends; health checks; and the node, if more is known of it than its name.
func describe(r Result) string {
	var lines []string
	for s := range r.Services.All() {
		line := fmt.Sprintf("%s %s %s", s.ID, s.Protocol, family(s.IPv6))
		if s.AffinityTimeout != 0 {
			line += fmt.Sprintf(" affinity %ds", s.AffinityTimeout/1e9)
		}
		lines = append(lines, line)
		for _, a := range s.Addresses {
			line := fmt.Sprintf("  %s %s", a.Kind, a.Addr)
			if a.Local {
				line += " local"
			}
			if len(a.Sources) > 0 {
				line += " from " + words(a.Sources)
			}
			lines = append(lines, line)
		}
		for _, b := range s.Backends {
			lines = append(lines, "  "+describeBackend(b))
		}
	}
	for _, h := range r.HealthChecks {
		lines = append(lines, fmt.Sprintf("health check %s/%s %s port %d: %d local", h.Namespace, h.Name, family(h.IPv6), h.Port, h.LocalEndpoints(noneOut)))
	}
	if f := r.Facts; f.Hostname != "" || f.Zone != "" || f.PodCIDRs != nil || f.Addresses != nil {
		lines = append(lines, fmt.Sprintf("node %s hostname=%s zone=%s pods=%s addresses=%s", f.NodeName, f.Hostname, f.Zone, words(f.PodCIDRs), words(f.Addresses)))
	}
	if len(lines) == 0 {
		return "nothing"
	}
	return strings.Join(lines, "\n")
}

func describeBackend(b lb.Backend) string {
	line := b.Addr.String()
	for _, c := range []struct {
		word string
		on   bool
	}{
		{"ready", b.Ready}, {"serving", b.Serving}, {"terminating", b.Terminating}, {"local", b.Local},
		{"node=here", b.NodeHint == lb.HintHere}, {"node=elsewhere", b.NodeHint == lb.HintElsewhere},
		{"zone=here", b.ZoneHint == lb.HintHere}, {"zone=elsewhere", b.ZoneHint == lb.HintElsewhere},
	} {
		if c.on {
			line += " " + c.word
		}
	}
	return line
}

func family(ipv6 bool) string {
	if ipv6 {
		return "IPv6"
	}
	return "IPv4"
}

// words writes a list by comma.
func words[T fmt.Stringer](list []T) string {
	var texts []string
	for _, v := range list {
		texts = append(texts, v.String())
	}
	return strings.Join(texts, ",")
}
