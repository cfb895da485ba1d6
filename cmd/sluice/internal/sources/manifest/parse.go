package manifest

//lint:file-ignore SA1019 Endpoints are deprecated, but a Service without EndpointSlices still has nothing else.

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kube"
)

// document is what one chunk of a file holds. It contains no file name and counts
// lines from its own beginning, so that it stays valid while the text around it
// changes. It is never changed once parsed.
type document struct {
	objects  []*object
	problems reports
	warnings reports
}

// failed returns a document that cannot be read.
func failed(line int, kind Kind, reason string) *document {
	return &document{problems: reports{{Line: line, Kind: kind, Reason: reason}}}
}

// object is one API object: decoded, defaulted, checked and trimmed.
type object struct {
	line  int    // of its document
	title string // "Service default/web", for messages
	value any    // a pointer to what one of the types below names
	// claims are what no other object may also have: the first is the object's
	// own name, the others the frontends of a Service.
	claims []claim
}

// claim is something that only one object can have: a name within its kind and
// namespace, or, when those are empty, a frontend.
type claim struct {
	kind, namespace, name string
	protocol              corev1.Protocol
	frontend              netip.AddrPort // without an address it is a node port
}

var (
	serviceType   = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	endpointsType = metav1.TypeMeta{APIVersion: "v1", Kind: "Endpoints"}
	nodeType      = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	sliceType     = metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}
	cidrType      = metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"}

	// listTypes are the lists that are read, with the type of items that do not
	// have one of their own, as in an answer of the API server.
	listTypes = map[metav1.TypeMeta]metav1.TypeMeta{
		{APIVersion: "v1", Kind: "List"}:                               {},
		{APIVersion: "v1", Kind: "ServiceList"}:                        serviceType,
		{APIVersion: "v1", Kind: "EndpointsList"}:                      endpointsType,
		{APIVersion: "v1", Kind: "NodeList"}:                           nodeType,
		{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSliceList"}: sliceType,
		{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDRList"}:  cidrType,
	}
)

// maxNesting bounds how deep lists may be in lists.
const maxNesting = 3

// parser parses one chunk.
type parser struct {
	text []byte
	line int // where the object begins
	doc  *document

	title  string // of the object at hand
	prefix string // path of the object at hand in its document: "items[3]."
	root   *yaml.Node
	failed bool // the object at hand has a problem
}

// parse reads some chunks of a file into their docs. One decoder reads the trees of those without a mistake, since to
// make one takes a tenth of the time of a small document; each of the others is read by itself, for exact lines.
func parse(chunks []chunk) {
	roots := readTrees(chunks)
	for i, c := range chunks {
		if roots != nil {
			c.parse(roots[i])
		}
		if roots == nil || len(c.doc.problems)+len(c.doc.warnings) > 0 {
			*c.doc = document{}
			c.parse(nil)
		}
	}
}

// parse reads the chunk, whose tree may be known.
func (c *chunk) parse(root *yaml.Node) {
	p := &parser{text: c.text, line: max(1, firstLine(c.text)), doc: c.doc, root: root}
	data, err := p.toJSON()
	if err != nil {
		c.doc.problems.add(err)
	} else if data != nil {
		p.object(data, metav1.TypeMeta{}, 0)
	}
}

// yamlLine is how errors of the YAML library name a line.
var yamlLine = regexp.MustCompile(`line (\d+): `)

// toJSON returns the chunk as JSON; nil if it is empty.
func (p *parser) toJSON() ([]byte, *Error) {
	if p.root != nil {
		return toJSON(p.root, p.text)
	}
	if tooManyValues(p.text) {
		return nil, &Error{Line: p.line, Kind: Limit,
			Reason: fmt.Sprintf("the document has more than %d values; split it into several documents", maxValues)}
	}
	if json.Valid(p.text) {
		return p.text, nil
	}
	root, err := readTree(p.text)
	if p.root = root; err == nil && root != nil {
		return toJSON(root, p.text)
	}
	if err == nil {
		return nil, nil
	}
	line, reason := p.line, strings.TrimPrefix(strings.Join(strings.Fields(err.Error()), " "), "yaml: ")
	if m := yamlLine.FindStringSubmatch(reason); m != nil {
		line, _ = strconv.Atoi(m[1])
		if strings.Contains(reason, "did not find expected") {
			line++ // the library counts from 0 where it is not its scanner that complains
		}
		line = min(max(1, line), 1+bytes.Count(p.text, []byte("\n")))
		reason = strings.Replace(reason, m[0], "", 1)
	}
	if lines := bytes.SplitN(p.text, []byte("\n"), line+1); line <= len(lines) && bytes.HasPrefix(
		bytes.TrimLeft(lines[line-1], " "), []byte("\t")) {
		reason += "; indent by spaces, not by tabs"
	}
	return nil, &Error{Line: line, Kind: Syntax, Reason: shorten("not valid YAML: " + reason)}
}

// objectHead is what an object is and is called.
type objectHead struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
}

// headOfTree reads the head of a whole document from its tree, which is a twentieth of the work
// of parsing it; false if the tree has anything but plain text there.
func (p *parser) headOfTree(depth int) (h objectHead, ok bool) {
	if p.root == nil || depth > 0 {
		return h, false
	}
	read := func(n *yaml.Node, first string, toFirst *string, second string, toSecond *string) bool {
		for i := 0; i < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			if key.Tag != "!!str" {
				return false
			}
			var to *string
			switch key.Value {
			case first:
				to = toFirst
			case second:
				to = toSecond
			default:
				continue
			}
			if value.Tag != "!!str" || words[value.Value] != "" {
				return false
			}
			*to = value.Value
		}
		return true
	}
	metadata := keyOf(p.root, "metadata")
	if !read(p.root, "apiVersion", &h.APIVersion, "kind", &h.Kind) || metadata < 0 {
		return h, false
	}
	n := p.root.Content[metadata+1]
	return h, n.Kind == yaml.MappingNode && read(n, "namespace", &h.Metadata.Namespace, "name", &h.Metadata.Name)
}

// lengthOf returns how many items a list of a whole document has, so that the decoder need not guess; 0: unknown.
func (p *parser) lengthOf(list string) int {
	if p.root == nil || p.prefix != "" {
		return 0
	}
	i := keyOf(p.root, list)
	if i < 0 {
		return 0
	}
	n := target(p.root.Content[i+1])
	if n.Kind != yaml.SequenceNode {
		return 0
	}
	return len(n.Content)
}

// object reads one object or list. implied is the type of an item of a list.
func (p *parser) object(data []byte, implied metav1.TypeMeta, depth int) {
	p.title, p.failed = "", false
	if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		p.fail("", "a manifest is a mapping with apiVersion, kind and metadata; this is none")
		return
	}
	head, ok := p.headOfTree(depth)
	if !ok {
		if err := utiljson.Unmarshal(data, &head); err != nil {
			p.decodeError(err)
			return
		}
	}
	t := head.TypeMeta
	if t == (metav1.TypeMeta{}) {
		t = implied
	}
	if t == (metav1.TypeMeta{}) && isShort(data) {
		p.short(data)
		return
	}
	if t.Kind == "" || t.APIVersion == "" {
		p.fail("", "the object has no apiVersion or no kind; write both, or listen and endpoints in place of them")
		return
	}
	p.title = title(t.Kind, head.Metadata.Namespace, head.Metadata.Name)
	if items, isList := listTypes[t]; isList {
		p.list(data, items, depth)
		return
	}
	o := &object{line: p.line}
	switch t {
	case serviceType:
		svc := new(corev1.Service)
		if p.decode(data, svc) && p.meta(o, t.Kind, &svc.ObjectMeta) {
			p.service(svc)
			o.claimFrontends(svc)
			o.value = kube.TrimService(svc)
		}
	case endpointsType:
		endpoints := new(corev1.Endpoints)
		if p.decode(data, endpoints) && p.meta(o, t.Kind, &endpoints.ObjectMeta) {
			p.endpoints(endpoints)
			o.value = endpoints
		}
	case sliceType:
		slice := &discoveryv1.EndpointSlice{Endpoints: make([]discoveryv1.Endpoint, 0, p.lengthOf("endpoints"))}
		if p.decode(data, slice) && p.meta(o, t.Kind, &slice.ObjectMeta) {
			p.slice(slice)
			o.value = kube.TrimSlice(slice)
		}
	case nodeType:
		var read unmeasuredNode
		node := &read.Node
		if p.decode(data, &read) && p.meta(o, t.Kind, &node.ObjectMeta) {
			node.Status = read.Status.NodeStatus
			p.node(node)
			o.value = kube.TrimNode(node)
		}
	case cidrType:
		cidr := new(networkingv1.ServiceCIDR)
		if p.decode(data, cidr) && p.meta(o, t.Kind, &cidr.ObjectMeta) {
			p.serviceCIDR(cidr)
			o.value = kube.TrimServiceCIDR(cidr)
		}
	default:
		p.unknownKind(t)
		return
	}
	if o.title = p.title; !p.failed {
		p.doc.objects = append(p.doc.objects, o)
	}
}

// unknownKind reports an object that is not read: a problem if it is an old form
// of one that is, which would be missed.
func (p *parser) unknownKind(t metav1.TypeMeta) {
	if strings.HasPrefix(t.APIVersion, "discovery.k8s.io/") && strings.HasPrefix(t.Kind, "EndpointSlice") {
		p.fail("apiVersion", "apiVersion "+t.APIVersion+" is no longer served; write discovery.k8s.io/v1")
		return
	}
	p.warn("", fmt.Sprintf(
		"ignored: only v1 Service, v1 Endpoints, v1 Node, discovery.k8s.io/v1 EndpointSlice and networking.k8s.io/v1 "+
			"ServiceCIDR are read, not %s %s",
		t.APIVersion, t.Kind))
}

// unmeasuredNode is a Node but for the fields that hold quantities, which nothing here
// reads: apimachinery takes minutes to round "1e-99999999".
type unmeasuredNode struct {
	corev1.Node `json:",inline"`
	Status      struct {
		corev1.NodeStatus `json:",inline"`
		Capacity          json.RawMessage `json:"capacity"`
		Allocatable       json.RawMessage `json:"allocatable"`
	} `json:"status"`
}

// strict decodes JSON as the strict decoder of the API server does: names are
// case-sensitive, and unknown and repeated fields are errors.
var strict = func() *kjson.Serializer {
	scheme := runtime.NewScheme() // empty: Decode is always given what to decode into
	return kjson.NewSerializerWithOptions(knownKind{}, scheme, scheme, kjson.SerializerOptions{Strict: true})
}()

// knownKind saves the serializer to look for the kind.
type knownKind struct{}

func (knownKind) Interpret([]byte) (*schema.GroupVersionKind, error) {
	return new(schema.GroupVersionKind), nil
}

// decode decodes data into an object and reports whether it had no problem.
func (p *parser) decode(data []byte, into runtime.Object) bool {
	_, _, err := strict.Decode(data, nil, into)
	if several, ok := runtime.AsStrictDecodingError(err); ok {
		for _, e := range several.Errors() {
			p.decodeError(e)
		}
	} else if err != nil {
		p.decodeError(err)
	}
	return err == nil
}

// list reads the items of a list as objects of their own, so that the problem
// of one has its own line and name.
func (p *parser) list(data []byte, implied metav1.TypeMeta, depth int) {
	if depth > maxNesting {
		p.fail("", "is nested in too many other lists; move its items out")
		return
	}
	var list metav1.List
	if !p.decode(data, &list) {
		return
	}
	prefix := p.prefix
	for i, item := range list.Items {
		p.prefix = fmt.Sprintf("%sitems[%d].", prefix, i)
		raw := item.Raw
		if raw == nil {
			raw = []byte("null")
		}
		p.object(raw, implied, depth+1)
	}
	p.prefix = prefix
}

// decodeError reports an error of the decoder.
func (p *parser) decodeError(err error) {
	path := ""
	if field := (interface{ FieldPath() string })(nil); errors.As(err, &field) {
		path = field.FieldPath()
	} else if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) && wrong.Type != nil {
		p.fail(wrong.Field, fmt.Sprintf("%s: Invalid value: %s: must be %s", wrong.Field, wrong.Value,
			wordOf(wrong.Type)))
		return
	}
	p.fail(path, strings.TrimPrefix(err.Error(), "json: "))
}

// wordOf returns what a manifest is to have for a Go type.
func wordOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "text: put it in quotes"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct, reflect.Pointer:
		return "a mapping"
	}
	return "a whole number"
}

// bad reports a field with a value that cannot be used.
func (p *parser) bad(e *field.Error) { p.fail(e.Field, e.Field+": "+e.ErrorBody()) }

// fail reports a problem of the field at path, which may be empty for the object.
func (p *parser) fail(path, reason string) {
	p.failed = true
	p.doc.problems.add(p.report(path, reason))
}

// warn reports what does not keep the file from being applied.
func (p *parser) warn(path, reason string) { p.doc.warnings.add(p.report(path, reason)) }

func (p *parser) report(path, reason string) *Error {
	if p.title != "" {
		reason = p.title + ": " + reason
	}
	line := p.line
	if path = p.prefix + path; path != "" {
		if p.root == nil { // it was JSON
			p.root, _ = readTree(p.text)
		}
		if p.root != nil {
			line = cmp.Or(lineOf(p.root, path), line)
		}
	}
	return &Error{Line: line, Kind: Invalid, Field: path, Reason: shorten(reason)}
}

func title(kind, namespace, name string) string {
	if namespace != "" && name != "" {
		name = namespace + "/" + name
	}
	return strings.TrimSpace(kind + " " + name)
}

// shorten keeps messages readable when a file holds a novel where a name belongs.
func shorten(text string) string {
	const enough = 500
	if len(text) <= enough {
		return text
	}
	return strings.ToValidUTF8(text[:enough], "") + "..."
}
