package manifest

//lint:file-ignore SA1019 Endpoints are deprecated, but a Service without EndpointSlices still has nothing else.

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// document is what one chunk of a file holds. It knows no file name and counts
// lines from its own beginning, so that it stays valid while the text around it
// changes. It is never changed once parsed.
type document struct {
	objects  []*object
	problems reports
	warnings reports
}

// object is one API object, decoded, defaulted and checked.
type object struct {
	line  int
	value any // *corev1.Service, *discoveryv1.EndpointSlice, *corev1.Endpoints or *corev1.Node
	// claims are what no other object may also have, each once: the first is the
	// object's own name, the others the frontends of a Service.
	claims []claim
	lines  []int // of the claims
}

// claim notes a claim of the object and the line where it is made.
func (o *object) claim(c claim, line int) {
	o.claims, o.lines = append(o.claims, c), append(o.lines, line)
}

// title names the object in messages: "Service default/web".
func (o *object) title() string {
	return title(o.claims[0].kind, o.claims[0].namespace, o.claims[0].name)
}

// lineOf returns the line where the object makes a claim, or where it begins if
// it does not.
func (o *object) lineOf(c claim) int {
	if i := slices.Index(o.claims, c); i >= 0 {
		return o.lines[i]
	}
	return o.line
}

func title(kind, namespace, name string) string {
	kind, namespace, name = shorten(kind), shorten(namespace), shorten(name)
	switch {
	case name == "":
		return kind
	case namespace == "":
		return kind + " " + name
	}
	return kind + " " + namespace + "/" + name
}

// claim is something that only one object can have: a name within its kind and
// namespace, or, when those are empty, a frontend.
type claim struct {
	kind, namespace, name string
	protocol              corev1.Protocol
	frontend              netip.AddrPort // without an address it is a node port
}

func nodePortClaim(protocol corev1.Protocol, port int32) claim {
	return claim{protocol: protocol, frontend: netip.AddrPortFrom(netip.Addr{}, uint16(port))}
}

// parse reads one chunk of a file.
func parse(text []byte, isJSON bool) *document {
	doc := new(document)
	read := parseYAML
	if isJSON {
		read = parseJSON
	}
	roots, err := read(text)
	if err != nil {
		doc.problems.add(err)
		return doc
	}
	d := &decoder{doc: doc, budget: aliasBudget}
	for _, root := range roots {
		d.budget += countNodes(root)
	}
	for _, root := range roots {
		if root.ShortTag() != "!!null" { // an empty document
			d.object(root, metav1.TypeMeta{}, 0)
		}
	}
	return doc
}

var (
	serviceType   = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	endpointsType = metav1.TypeMeta{APIVersion: "v1", Kind: "Endpoints"}
	nodeType      = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	sliceType     = metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}

	// listTypes are the lists that are read, with the type their items have when
	// they do not say, as in an answer of the API server.
	listTypes = map[metav1.TypeMeta]metav1.TypeMeta{
		{APIVersion: "v1", Kind: "List"}:                               {},
		{APIVersion: "v1", Kind: "ServiceList"}:                        serviceType,
		{APIVersion: "v1", Kind: "EndpointsList"}:                      endpointsType,
		{APIVersion: "v1", Kind: "NodeList"}:                           nodeType,
		{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSliceList"}: sliceType,
	}
)

// object reads one object or list. implied is the type of an item of a list.
func (d *decoder) object(n *yaml.Node, implied metav1.TypeMeta, depth int) {
	d.title, d.path = "", nil
	line := n.Line
	if n = d.spend(n); n == nil {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.fail(line, "%s stands where an object should; a manifest is a mapping with apiVersion, kind and metadata", describe(n))
		return
	}
	typeMeta := metav1.TypeMeta{APIVersion: text(n, "apiVersion"), Kind: text(n, "kind")}
	if typeMeta == (metav1.TypeMeta{}) {
		typeMeta = implied
	}
	if typeMeta.Kind == "" || typeMeta.APIVersion == "" {
		d.fail(line, "the object has no apiVersion or no kind; write both")
		return
	}
	metadata := child(n, "metadata")
	d.title = title(typeMeta.Kind, text(metadata, "namespace"), text(metadata, "name"))
	before := len(d.doc.problems)
	o := &object{line: line}
	switch items, isList := listTypes[typeMeta]; {
	case isList:
		d.list(n, items, depth)
		return
	case typeMeta == serviceType:
		svc := new(corev1.Service)
		o.value = svc
		if d.decodeAll(n, svc) {
			d.service(o, n, svc)
		}
	case typeMeta == endpointsType:
		endpoints := new(corev1.Endpoints)
		o.value = endpoints
		if d.decodeAll(n, endpoints) {
			d.endpoints(o, n, endpoints)
		}
	case typeMeta == sliceType:
		slice := new(discoveryv1.EndpointSlice)
		o.value = slice
		if d.decodeAll(n, slice) {
			d.slice(o, n, slice)
			compact(slice)
		}
	case typeMeta == nodeType:
		node := new(corev1.Node)
		o.value = node
		if d.decodeAll(n, node) {
			d.node(o, n, node)
		}
	case strings.HasPrefix(typeMeta.APIVersion, "discovery.k8s.io/") && strings.HasPrefix(typeMeta.Kind, "EndpointSlice"):
		d.fail(line, "apiVersion %s is no longer served; write discovery.k8s.io/v1", shorten(typeMeta.APIVersion))
	default:
		d.warn(line, "ignored: of all kinds only v1 Service, v1 Endpoints, v1 Node and discovery.k8s.io/v1 EndpointSlice are read, not %s %s",
			shorten(typeMeta.APIVersion), shorten(typeMeta.Kind))
		return
	}
	if len(d.doc.problems) == before {
		d.doc.objects = append(d.doc.objects, o)
	}
}

// decodeAll decodes an object into a pointer to its type and tells whether it
// had no problem.
func (d *decoder) decodeAll(n *yaml.Node, into any) bool {
	before := len(d.doc.problems)
	d.decodeStruct(n, reflect.ValueOf(into).Elem())
	return len(d.doc.problems) == before
}

// list reads the items of a list as objects of their own, so that the problem
// of one has its own line and name.
func (d *decoder) list(n *yaml.Node, implied metav1.TypeMeta, depth int) {
	if depth > 3 {
		d.fail(n.Line, "is nested in too many other lists; take its items out")
		return
	}
	var items *yaml.Node
	pairs := d.pairs(n)
	for i := 0; i < len(pairs); i += 2 {
		key, value := pairs[i], pairs[i+1]
		switch key.Value {
		case "apiVersion", "kind":
		case "metadata":
			d.into(key.Value, value, reflect.ValueOf(new(metav1.ListMeta)).Elem())
		case "items":
			items = value
		default:
			d.unknownField(key, fieldsOf(reflect.TypeFor[metav1.List]()))
		}
	}
	if items == nil {
		return
	}
	line := items.Line
	if items = d.spend(items); items == nil || items.ShortTag() == "!!null" {
		return
	}
	if items.Kind != yaml.SequenceNode {
		d.path = []any{"items"}
		d.fail(line, "is %s; it must be a list of objects", describe(items))
		return
	}
	for _, item := range items.Content {
		d.object(item, implied, depth+1)
	}
}

// warn reports something that does not keep the file from being in force.
func (d *decoder) warn(line int, format string, args ...any) {
	d.doc.warnings.add(&Error{Line: line, Reason: d.title + ": " + fmt.Sprintf(format, args...)})
}

// child returns the value of a field of a mapping, or nil.
func child(n *yaml.Node, name string) *yaml.Node {
	_, value := field(n, name)
	return value
}

// field returns the key and the value of a field of a mapping, or nils. It
// does not look into merges: what it finds only serves to word messages.
func field(n *yaml.Node, name string) (key, value *yaml.Node) {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value != name {
			continue
		}
		key, value = n.Content[i], n.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		return key, value
	}
	return nil, nil
}

// text returns the text of a scalar field of a mapping, or "".
func text(n *yaml.Node, name string) string {
	if value := child(n, name); value != nil && value.Kind == yaml.ScalarNode && value.ShortTag() != "!!null" {
		return value.Value
	}
	return ""
}

// lineOf returns the line of a field below n, or of the nearest field around it
// that is written down.
func lineOf(n *yaml.Node, path ...any) int {
	line := n.Line
	for _, step := range path {
		switch step := step.(type) {
		case string:
			key, value := field(n, step)
			if key == nil {
				return line
			}
			line, n = key.Line, value
		case int:
			if n.Kind != yaml.SequenceNode || step >= len(n.Content) {
				return line
			}
			n = n.Content[step]
			line = n.Line
			if n.Kind == yaml.AliasNode {
				n = n.Alias
			}
		}
	}
	return line
}
