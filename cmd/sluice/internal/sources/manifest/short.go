package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kube"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/nearest"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/policies"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/probes"
)

// short is the short form of a Service and its EndpointSlices.
type short struct {
	Name      string                     `json:"name"`
	Listen    string                     `json:"listen"`
	Endpoints []string                   `json:"endpoints"`
	Policies  map[string]json.RawMessage `json:"policies"`
}

// GetObjectKind makes it an object to the decoder.
func (*short) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the same, since nothing changes a short form.
func (s *short) DeepCopyObject() runtime.Object { return s }

// shortFields are the fields of a short form.
var shortFields = []string{"name", "listen", "endpoints", "policies"}

// isShort reports whether an object without a type is meant to be a short form.
func isShort(data []byte) bool {
	var fields map[string]json.RawMessage
	if json.Unmarshal(data, &fields) != nil {
		return false
	}
	for name := range fields {
		near := nearest.Of(name, slices.Values(shortFields)) == "listen"
		if name != "name" && (near || slices.Contains(shortFields, name)) {
			return true
		}
	}
	return false
}

// protocols are the words before "://".
var protocols = map[string]corev1.Protocol{
	"tcp": corev1.ProtocolTCP, "udp": corev1.ProtocolUDP, "sctp": corev1.ProtocolSCTP,
}

// short reads a short form as the objects that it stands for.
func (p *parser) short(data []byte) {
	var s short
	_, _, err := strict.Decode(data, nil, &s)
	if several, ok := runtime.AsStrictDecodingError(err); ok {
		for _, e := range several.Errors() {
			p.shortError(e)
		}
	} else if err != nil {
		p.shortError(err)
	}
	if p.failed {
		return
	}
	protocol, at, ok := p.listen(s.Listen)
	if !ok {
		return
	}
	if s.Name == "" {
		s.Name = shortName(protocol, at)
	} else if reasons := apivalidation.NameIsDNSLabel(s.Name, false); len(reasons) > 0 {
		p.bad(field.Invalid(field.NewPath("name"), s.Name, reasons[0]))
		return
	}
	o := &object{line: p.line}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: s.Name}}
	p.meta(o, serviceType.Kind, &svc.ObjectMeta)
	title := p.title
	svc.Annotations = p.shortPolicies(s.Policies)
	groups := p.shortEndpoints(s.Endpoints, at)
	svc.Spec.Ports = []corev1.ServicePort{{Port: int32(at.Port()), Protocol: protocol}}
	if at.Addr().IsValid() {
		svc.Spec.ExternalIPs = []string{at.Addr().String()}
		o.claims = append(o.claims, claim{protocol: protocol, frontend: at})
	} else {
		svc.Spec.Type = corev1.ServiceTypeNodePort
		svc.Spec.Ports[0].NodePort = int32(at.Port())
		svc.Spec.IPFamilies = groups.families()
	}
	p.service(svc)
	o.claimFrontends(svc)
	o.value = kube.TrimService(svc)
	objects := []*object{o}
	for i, g := range groups {
		objects = append(objects, p.shortSlice(svc, i+1, g))
	}
	if o.title = title; !p.failed {
		p.doc.objects = append(p.doc.objects, objects...)
	}
}

// shortError reports an error of the decoder.
func (p *parser) shortError(err error) {
	reason := strings.TrimPrefix(err.Error(), "json: ")
	if name, ok := strings.CutPrefix(reason, "unknown field "); ok {
		if name, err := strconv.Unquote(name); err == nil {
			fix := "; the fields are " + strings.Join(shortFields, ", ")
			if near := nearest.Of(name, slices.Values(shortFields)); near != "" {
				fix = ": did you mean " + near + "?"
			} else if policies.Find(name) != nil {
				fix = ": did you mean policies: {" + name + ": ...}?"
			}
			p.fail(name, reason+fix)
			return
		}
	}
	p.decodeError(err)
}

// listen reads what a short form listens at. The address is invalid for all addresses of the machine.
func (p *parser) listen(text string) (protocol corev1.Protocol, at netip.AddrPort, ok bool) {
	const example = "tcp://192.0.2.10:5432, or tcp://:5432 for all addresses of this machine"
	path := field.NewPath("listen")
	wrong := func(why string) (corev1.Protocol, netip.AddrPort, bool) {
		p.bad(field.Invalid(path, text, why))
		return "", netip.AddrPort{}, false
	}
	if text == "" {
		p.bad(field.Required(path, "write it as "+example))
		return "", at, false
	}
	scheme, rest, found := strings.Cut(text, "://")
	if protocol = protocols[scheme]; !found || protocol == "" {
		return wrong("must begin with tcp://, udp:// or sctp://")
	}
	if port, all := strings.CutPrefix(rest, ":"); all {
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil || number == 0 {
			return wrong("must end with a port from 1 to 65535")
		}
		return protocol, netip.AddrPortFrom(netip.Addr{}, uint16(number)), true
	}
	at, err := netip.ParseAddrPort(rest)
	switch ip := at.Addr(); {
	case err != nil || at.Port() == 0:
		return wrong("write it as " + example)
	case ip.IsUnspecified():
		return wrong(fmt.Sprintf("write %s://:%d for all addresses of this machine", scheme, at.Port()))
	case ip.IsLoopback() || ip.IsLinkLocalUnicast():
		return wrong("may not be loopback or link-local: other hosts cannot send to it")
	}
	p.ip(path, at.Addr().String())
	return protocol, at, !p.failed
}

// shortName returns the name of a short form without one.
func shortName(protocol corev1.Protocol, at netip.AddrPort) string {
	name := strings.ToLower(string(protocol))
	if at.Addr().IsValid() {
		name += "-" + strings.NewReplacer(".", "-", ":", "-").Replace(at.Addr().String())
	}
	return name + "-" + strconv.Itoa(int(at.Port()))
}

// endpointGroup are endpoints that one EndpointSlice can have.
type endpointGroup struct {
	port      uint16
	ipv6      bool
	addresses []string
}

func (g endpointGroup) family() (corev1.IPFamily, discoveryv1.AddressType) {
	if g.ipv6 {
		return corev1.IPv6Protocol, discoveryv1.AddressTypeIPv6
	}
	return corev1.IPv4Protocol, discoveryv1.AddressTypeIPv4
}

type endpointGroups []endpointGroup

// families returns those of the endpoints.
func (groups endpointGroups) families() (out []corev1.IPFamily) {
	for _, g := range groups {
		if f, _ := g.family(); !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out
}

// hostPort is an endpoint that is named in place of written as an address.
var hostPort = regexp.MustCompile(`^[A-Za-z0-9_.-]*[A-Za-z][A-Za-z0-9_.-]*(:\d+)?$`)

// shortEndpoints reads the endpoints of a short form that listens at an address.
func (p *parser) shortEndpoints(list []string, at netip.AddrPort) (groups endpointGroups) {
	if list == nil {
		p.bad(field.Required(field.NewPath("endpoints"), "write them as [192.0.2.11:5432, ...], or [] for none"))
	}
	for i, text := range list {
		path := field.NewPath("endpoints").Index(i)
		to, err := netip.ParseAddrPort(text)
		ip := to.Addr()
		switch {
		case err != nil && hostPort.MatchString(text):
			p.bad(field.Invalid(path, text, "write the address in place of the name: names are not resolved"))
			continue
		case err != nil || to.Port() == 0:
			p.bad(field.Invalid(path, text, "must be an address and a port, as 192.0.2.11:5432 or [2001:db8::11]:5432"))
			continue
		case ip.IsLoopback():
			p.bad(field.Invalid(path, text, "may not be loopback: write an address of this machine"))
			continue
		case at.Addr().IsValid() && at.Addr().Is6() != ip.Is6():
			p.bad(field.Invalid(path, text, "must be of the same IP family as listen"))
			continue
		}
		p.endpointIP(path, ip.String())
		same := func(g endpointGroup) bool { return g.port == to.Port() && g.ipv6 == ip.Is6() }
		g := slices.IndexFunc(groups, same)
		if g < 0 {
			g = len(groups)
			groups = append(groups, endpointGroup{port: to.Port(), ipv6: ip.Is6()})
		}
		groups[g].addresses = append(groups[g].addresses, ip.String())
	}
	return groups
}

// shortSlice returns the EndpointSlice of a group of endpoints.
func (p *parser) shortSlice(svc *corev1.Service, number int, g endpointGroup) *object {
	_, kind := g.family()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", svc.Name, number),
			Labels: map[string]string{discoveryv1.LabelServiceName: svc.Name}},
		AddressType: kind,
		Ports:       []discoveryv1.EndpointPort{{Port: new(int32(g.port)), Protocol: &svc.Spec.Ports[0].Protocol}},
	}
	for _, address := range g.addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	o := &object{line: p.line}
	if p.meta(o, sliceType.Kind, &slice.ObjectMeta) {
		p.slice(slice)
	}
	o.title, o.value = p.title, kube.TrimSlice(slice)
	return o
}

// shortPolicies returns the policies of a short form as annotations.
func (p *parser) shortPolicies(given map[string]json.RawMessage) map[string]string {
	annotations := make(map[string]string, len(given))
	for _, word := range slices.Sorted(maps.Keys(given)) {
		text, ok := p.policyText(word, given[word])
		if !ok {
			p.fail("policies."+word, "policies."+word+": must be a word, a number, or text in quotes")
		}
		annotations[policies.Prefix+word] = text
	}
	if p.failed {
		return nil
	}
	_, ignored := policies.Read(annotations, probes.Check)
	for _, i := range ignored {
		path := "policies." + strings.TrimPrefix(i.Annotation, policies.Prefix)
		p.fail(path, path+": "+strings.ReplaceAll(i.Error(), policies.Prefix, ""))
	}
	return annotations
}

// policyText returns a value as it is written: "off", say, is not false. ok is false for a list, a mapping and nothing.
func (p *parser) policyText(word string, value json.RawMessage) (text string, ok bool) {
	if p.root == nil { // it was JSON
		p.root, _ = readTree(p.text)
	}
	n := p.root
	for _, name := range []string{"policies", word} {
		i := -1
		if n != nil && n.Kind == yaml.MappingNode {
			i = keyOf(n, name)
		}
		if i < 0 { // merged, or JSON that is no YAML
			if json.Unmarshal(value, &text) == nil {
				return text, text != ""
			}
			return string(value), !bytes.ContainsAny(value[:1], "[{")
		}
		n = target(n.Content[i+1])
	}
	return n.Value, n.Kind == yaml.ScalarNode && n.Tag != "!!null"
}
