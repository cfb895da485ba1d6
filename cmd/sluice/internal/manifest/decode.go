package manifest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unique"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// aliasBudget is how many values of one document may come from YAML aliases:
// plenty for labels that are written once, too few to multiply a document into
// gigabytes.
const aliasBudget = 100_000

// decoder turns nodes into API types. It decodes as the API server's strict
// decoder does (names are case-sensitive; no unknown and no repeated field; no
// number for a text), but knows the line of every value and reports all that is
// wrong rather than the first.
type decoder struct {
	doc    *document
	title  string // of the object at hand, "Service default/web"; for messages
	path   []any  // field names and indexes from the object to the value at hand
	budget int    // values that may still be visited
}

// fail reports a problem of the field at d.path.
func (d *decoder) fail(line int, format string, args ...any) {
	reason := fmt.Sprintf(format, args...)
	if len(d.path) > 0 {
		reason = pathText(d.path) + " " + reason
	}
	if d.title != "" {
		reason = d.title + ": " + reason
	}
	d.doc.problems.add(&Error{Line: line, Reason: reason})
}

// pathText writes a path of names and indexes: "spec.ports[0].port".
func pathText(path []any) string {
	var b strings.Builder
	for _, step := range path {
		if index, ok := step.(int); ok {
			fmt.Fprintf(&b, "[%d]", index)
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(shorten(step.(string)))
	}
	return b.String()
}

// spend counts one visited value and follows an alias. It returns nil when the
// document has used up its budget, which is reported once.
func (d *decoder) spend(n *yaml.Node) *yaml.Node {
	if d.budget <= 0 {
		if d.budget == 0 {
			d.fail(n.Line, "is one alias too many: aliases stand for more than %d values in this document; write the values out", aliasBudget)
		}
		d.budget = -1
		return nil
	}
	d.budget--
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// countNodes returns the number of nodes in a tree without following aliases.
func countNodes(n *yaml.Node) int {
	count := 1
	for _, child := range n.Content {
		count += countNodes(child)
	}
	return count
}

// decode stores n in v. Null leaves v as it is, as in JSON.
func (d *decoder) decode(n *yaml.Node, v reflect.Value) {
	if n = d.spend(n); n == nil || n.ShortTag() == "!!null" {
		return
	}
	for v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if _, ok := v.Addr().Interface().(json.Unmarshaler); ok {
		d.decodeJSON(n, v)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.decodeStruct(n, v)
	case reflect.Map:
		d.decodeMap(n, v)
	case reflect.Slice:
		d.decodeSlice(n, v)
	case reflect.String:
		d.decodeString(n, v)
	case reflect.Bool:
		d.decodeBool(n, v)
	case reflect.Int32, reflect.Int64:
		d.decodeInt(n, v)
	default:
		d.decodeJSON(n, v)
	}
}

// into decodes a member of the value at hand.
func (d *decoder) into(step any, n *yaml.Node, v reflect.Value) {
	d.path = append(d.path, step)
	d.decode(n, v)
	d.path = d.path[:len(d.path)-1]
}

func (d *decoder) decodeStruct(n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.fail(n.Line, "is %s; it must be a mapping of fields to values", describe(n))
		return
	}
	fields := fieldsOf(v.Type())
	pairs := d.pairs(n)
	for i := 0; i < len(pairs); i += 2 {
		key := pairs[i]
		index, ok := fields[key.Value]
		if !ok {
			d.unknownField(key, fields)
			continue
		}
		d.into(key.Value, pairs[i+1], v.FieldByIndex(index))
	}
}

func (d *decoder) unknownField(key *yaml.Node, fields map[string][]int) {
	d.path = append(d.path, key.Value)
	defer func() { d.path = d.path[:len(d.path)-1] }()
	for name := range fields {
		if strings.EqualFold(name, key.Value) {
			d.fail(key.Line, "is not a field; write %q", name)
			return
		}
	}
	d.fail(key.Line, "is not a field; correct its spelling or its indentation, or remove it")
}

func (d *decoder) decodeMap(n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.fail(n.Line, "is %s; it must be a mapping of names to values", describe(n))
		return
	}
	pairs := d.pairs(n)
	v.Set(reflect.MakeMapWithSize(v.Type(), len(pairs)/2))
	for i := 0; i < len(pairs); i += 2 {
		element := reflect.New(v.Type().Elem()).Elem()
		d.into(pairs[i].Value, pairs[i+1], element)
		v.SetMapIndex(reflect.ValueOf(pairs[i].Value).Convert(v.Type().Key()), element)
	}
}

func (d *decoder) decodeSlice(n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.fail(n.Line, "is %s; it must be a list", describe(n))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, element := range n.Content {
		d.into(i, element, v.Index(i))
	}
}

func (d *decoder) decodeString(n *yaml.Node, v reflect.Value) {
	switch n.ShortTag() {
	case "!!str", "!!timestamp": // plain text that looks like a time is text in the API
		text := n.Value
		if v.Type() != textType { // one of a few names, as TCP or IPv4
			text = unique.Make(text).Value()
		}
		v.SetString(text)
	default:
		d.fail(n.Line, "is %s; it must be text, so put it in quotes if it is meant", describe(n))
	}
}

func (d *decoder) decodeBool(n *yaml.Node, v reflect.Value) {
	if n.ShortTag() == "!!bool" {
		v.SetBool(strings.EqualFold(n.Value, "true"))
		return
	}
	if n.Kind == yaml.ScalarNode && n.Style == 0 { // YAML 1.1, which kubectl reads
		switch strings.ToLower(n.Value) {
		case "yes", "on":
			v.SetBool(true)
			return
		case "no", "off":
			v.SetBool(false)
			return
		}
	}
	d.fail(n.Line, "is %s; it must be true or false", describe(n))
}

func (d *decoder) decodeInt(n *yaml.Node, v reflect.Value) {
	if n.ShortTag() != "!!int" {
		d.fail(n.Line, "is %s; it must be a whole number, without quotes", describe(n))
		return
	}
	number, err := strconv.ParseInt(strings.ReplaceAll(n.Value, "_", ""), 0, v.Type().Bits())
	if err != nil {
		d.fail(n.Line, "is %s, which is out of range; it must be a whole number of %d bits", describe(n), v.Type().Bits())
		return
	}
	v.SetInt(number)
}

// jsonForms says what the types that decode themselves want.
var jsonForms = map[reflect.Type]string{
	quantityType:                          `a quantity such as 4, "500m" or "16Gi"`,
	reflect.TypeFor[metav1.Time]():        `a time such as "2006-01-02T15:04:05Z"`,
	reflect.TypeFor[intstr.IntOrString](): "a port number or the name of a port",
}

var (
	quantityType = reflect.TypeFor[resource.Quantity]()
	textType     = reflect.TypeFor[string]()

	// quantityForm is a number, as JSON, of a size that some machine may have. It
	// is the bound on what a quantity costs: apimachinery 0.36.3 takes 36 s to
	// round "1e-99999999" (measured), and longer for smaller ones.
	quantityForm = regexp.MustCompile(`^"?[+-]?[0-9.]{1,40}([eE][+-]?[0-9]{1,3}|[A-Za-z]{0,2})"?$`)
)

// decodeJSON stores n in a value that knows its own JSON form.
func (d *decoder) decodeJSON(n *yaml.Node, v reflect.Value) {
	plain, ok := d.plain(n, 0)
	if !ok {
		return
	}
	text, err := json.Marshal(plain)
	good := err == nil && (v.Type() != quantityType || quantityForm.Match(text))
	if !good || json.Unmarshal(text, v.Addr().Interface()) != nil {
		form := jsonForms[v.Type()]
		if form == "" {
			form = "a value of type " + v.Type().String()
		}
		d.fail(n.Line, "is %s; it must be %s", describe(n), form)
	}
}

// plain returns n, whose budget is paid, as what encoding/json can write.
func (d *decoder) plain(n *yaml.Node, depth int) (any, bool) {
	if depth > maxDepth {
		d.fail(n.Line, "is nested more than %d deep, which no manifest needs", maxDepth)
		return nil, false
	}
	switch n.Kind {
	case yaml.MappingNode:
		out := make(map[string]any)
		pairs := d.pairs(n)
		for i := 0; i < len(pairs); i += 2 {
			child := d.spend(pairs[i+1])
			if child == nil {
				return nil, false
			}
			value, ok := d.plain(child, depth+1)
			if !ok {
				return nil, false
			}
			out[pairs[i].Value] = value
		}
		return out, true
	case yaml.SequenceNode:
		out := make([]any, 0, len(n.Content))
		for _, child := range n.Content {
			if child = d.spend(child); child == nil {
				return nil, false
			}
			value, ok := d.plain(child, depth+1)
			if !ok {
				return nil, false
			}
			out = append(out, value)
		}
		return out, true
	}
	switch n.ShortTag() {
	case "!!null":
		return nil, true
	case "!!bool":
		return strings.EqualFold(n.Value, "true"), true
	case "!!int":
		if number, err := strconv.ParseInt(strings.ReplaceAll(n.Value, "_", ""), 0, 64); err == nil {
			return number, true
		}
		return json.Number(n.Value), true // too large for any field, which Unmarshal says
	case "!!float":
		return json.Number(n.Value), true // Marshal refuses what is no JSON number
	}
	return n.Value, true
}

// pairs returns the keys and values of a mapping in turn, with YAML merge keys
// ("<<") resolved: a merged field counts only where the mapping itself, or an
// earlier merge, has no such field. A repeated key is reported and left out.
func (d *decoder) pairs(n *yaml.Node) []*yaml.Node {
	m := mapping{pairs: make([]*yaml.Node, 0, len(n.Content))}
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		switch {
		case key.ShortTag() == "!!merge":
			merges = append(merges, value)
		case key.ShortTag() != "!!str":
			d.fail(key.Line, "has %s for a name; a name must be text, so put it in quotes if it is meant", describe(key))
		case !m.add(key, value):
			d.path = append(d.path, key.Value)
			d.fail(key.Line, "is set twice; keep one of the two")
			d.path = d.path[:len(d.path)-1]
		}
	}
	for _, n := range merges {
		d.merge(&m, n, true)
	}
	return m.pairs
}

// merge adds the fields of a mapping, or of each of a list of mappings, that m
// does not have.
func (d *decoder) merge(m *mapping, n *yaml.Node, list bool) {
	line := n.Line
	if n = d.spend(n); n == nil {
		return
	}
	if n.Kind == yaml.SequenceNode && list {
		for _, child := range n.Content {
			d.merge(m, child, false)
		}
		return
	}
	if n.Kind != yaml.MappingNode {
		d.fail(line, "merges %s; only a mapping can be merged", describe(n))
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := d.spend(n.Content[i])
		if key == nil {
			return
		}
		if key.ShortTag() != "!!str" {
			d.fail(line, "merges a mapping that has %s for a name; only names that are text can be merged", describe(key))
			return
		}
		m.add(key, n.Content[i+1])
	}
}

// mapping is a growing list of keys and values in turn, each key once.
type mapping struct {
	pairs []*yaml.Node
	index map[string]bool // of the keys, once there are too many to scan
}

// add returns false when the key is there already.
func (m *mapping) add(key, value *yaml.Node) bool {
	const many = 32 // keys and values
	if m.index == nil && len(m.pairs) >= many {
		m.index = make(map[string]bool, 2*many)
		for i := 0; i < len(m.pairs); i += 2 {
			m.index[m.pairs[i].Value] = true
		}
	}
	if m.index != nil {
		if m.index[key.Value] {
			return false
		}
		m.index[key.Value] = true
	} else {
		for i := 0; i < len(m.pairs); i += 2 {
			if m.pairs[i].Value == key.Value {
				return false
			}
		}
	}
	m.pairs = append(m.pairs, key, value)
	return true
}

// describe names a value in a message: `"80"`, `80`, "a list".
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	text := shorten(n.Value)
	if tag := n.ShortTag(); tag == "!!int" || tag == "!!float" || tag == "!!bool" {
		return text
	}
	return strconv.Quote(text)
}

// shorten keeps messages readable when a file holds a novel where a name belongs.
func shorten(text string) string {
	const enough = 80
	if len(text) <= enough {
		return text
	}
	return strings.ToValidUTF8(text[:enough], "") + "..."
}

// fieldCache maps a reflect.Type to its map[string][]int.
var fieldCache sync.Map

// fieldsOf returns the JSON names of a struct's fields with their indexes.
func fieldsOf(t reflect.Type) map[string][]int {
	if cached, ok := fieldCache.Load(t); ok {
		return cached.(map[string][]int)
	}
	fields := make(map[string][]int)
	addFields(fields, t, nil)
	cached, _ := fieldCache.LoadOrStore(t, fields)
	return cached.(map[string][]int)
}

func addFields(fields map[string][]int, t reflect.Type, prefix []int) {
	for i := range t.NumField() {
		field := t.Field(i)
		index := append(append([]int(nil), prefix...), i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-" || !field.IsExported():
		case name == "" && field.Anonymous:
			addFields(fields, field.Type, index)
		case name == "":
			fields[field.Name] = index
		default:
			fields[name] = index
		}
	}
}
