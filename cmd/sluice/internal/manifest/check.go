package manifest

import (
	"fmt"
	"net/netip"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// checker finds what an API server would refuse in one decoded object. Its
// methods report to the decoder with the line of the field in question.
type checker struct {
	*decoder
	root *yaml.Node
}

// bad reports a problem of the field at path, a list of names and indexes.
func (c checker) bad(path []any, format string, args ...any) {
	c.path = path
	c.fail(lineOf(c.root, path...), format, args...)
	c.path = nil
}

// at is short for the path of a field.
func at(path ...any) []any { return path }

// below returns the path of a field of the field at path.
func below(path []any, more ...any) []any {
	return append(append([]any(nil), path...), more...)
}

// metadata fills in the namespace, unless the kind has none, and checks both
// names. A Service's name must be a DNS label, since it becomes one; other names
// may have several.
func (c checker) metadata(kind string, meta *metav1.ObjectMeta) {
	namespaced := kind != nodeType.Kind
	if namespaced && meta.Namespace == "" {
		meta.Namespace = metav1.NamespaceDefault
	}
	c.title = title(kind, meta.Namespace, meta.Name)
	switch {
	case !namespaced && meta.Namespace != "":
		c.bad(at("metadata", "namespace"), "is %q, but a %s is in no namespace; remove it", shorten(meta.Namespace), kind)
	case namespaced && len(validation.IsDNS1123Label(meta.Namespace)) > 0:
		c.bad(at("metadata", "namespace"), "is %q, which is no DNS label; %s", shorten(meta.Namespace), labelForm)
	}
	switch {
	case meta.Name == "":
		c.bad(at("metadata", "name"), "is missing; give the object a name")
	case kind == serviceType.Kind && len(validation.IsDNS1123Label(meta.Name)) > 0:
		c.bad(at("metadata", "name"), "is %q, which is no DNS label; %s", shorten(meta.Name), labelForm)
	case len(validation.IsDNS1123Subdomain(meta.Name)) > 0:
		c.bad(at("metadata", "name"), "is %q, which is no DNS name; %s", shorten(meta.Name), nameForm)
	}
}

const (
	labelForm = "use lower-case letters, digits and '-', a letter or digit at each end, at most 63 characters"
	nameForm  = "use DNS labels with dots between them, at most 253 characters"
)

// pair fills in the one from the other of two fields of the spec, a value and the
// list that begins with it: the API has both where one value became too few. It
// returns the path of an item of the list as it is written; ok is false if there
// is none, or if the two disagree, which is reported.
func (c checker) pair(single string, value *string, list string, values *[]string) (path func(i int) []any, ok bool) {
	path = func(i int) []any { return at("spec", list, i) }
	switch {
	case len(*values) == 0 && *value == "":
		return nil, false
	case len(*values) == 0:
		*values = []string{*value}
		return func(int) []any { return at("spec", single) }, true
	case *value == "":
		*value = (*values)[0]
	case *value != (*values)[0]:
		c.bad(path(0), "is %q, but spec.%s is %q; write the same in both", shorten((*values)[0]), single, shorten(*value))
		return nil, false
	}
	return path, true
}

func validPort(port int32) bool { return port >= 1 && port <= 65535 }

// port checks a port number.
func (c checker) port(path []any, port int32) {
	if !validPort(port) {
		c.bad(path, "is %d; a port is a number from 1 to 65535", port)
	}
}

// protocol fills in TCP for an empty protocol and checks it otherwise.
func (c checker) protocol(path []any, p *corev1.Protocol) {
	switch *p {
	case "":
		*p = corev1.ProtocolTCP
	case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
	default:
		c.bad(path, "is %q; write TCP, UDP or SCTP", shorten(string(*p)))
	}
}

// portName checks the name of one of several ports: a DNS label, unlike the
// names already seen.
func (c checker) portName(path []any, name string, required bool, seen map[string]bool) {
	switch {
	case name == "" && required:
		c.bad(path, "is missing; a port needs a name where there are several")
	case name != "" && len(validation.IsDNS1123Label(name)) > 0:
		c.bad(path, "is %q, which is no DNS label; %s", shorten(name), labelForm)
	case seen[name]:
		c.bad(path, "is %q, as that of another port; give each port a name of its own", name)
	}
	seen[name] = true
}

// ip checks an IP address of either family.
func (c checker) ip(path []any, text string) {
	if _, why := parseIP(text, ""); why != "" {
		c.bad(path, "%s", why)
	}
}

func familyOf(ip netip.Addr) corev1.IPFamily {
	if ip.Is6() {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// parseIP reads an IP address of the family the API calls "IPv4" or "IPv6", or
// of either when family is empty. why says what is wrong with it and what to do,
// as the end of a sentence; it is empty for a good address.
func parseIP(text, family string) (ip netip.Addr, why string) {
	ip, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return ip, fmt.Sprintf("is %q, which is no IP address; write one like 10.0.0.1 (no leading zeros) or fd00::1", shorten(text))
	case ip.Zone() != "":
		return ip, fmt.Sprintf("is %q; remove the zone", shorten(text))
	case ip.Is4In6():
		return ip, fmt.Sprintf("is %q; write it as IPv4, %s", text, ip.Unmap())
	case family == "IPv4" && !ip.Is4(), family == "IPv6" && !ip.Is6():
		return ip, fmt.Sprintf("is %s, which is not %s; correct the address or its family", text, family)
	case ip.IsUnspecified(), ip.IsMulticast():
		return ip, fmt.Sprintf("is %s, which is no address of a single host; write a unicast address", text)
	}
	return ip, ""
}

// parsePrefix reads a range of IP addresses in CIDR notation, as strictly as API
// servers do since 1.36 (feature gate StrictIPCIDRValidation). why is as that of
// parseIP.
func parsePrefix(text string) (prefix netip.Prefix, why string) {
	prefix, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return prefix, fmt.Sprintf("is %q, which is no range of IP addresses; write one like 10.0.0.0/8 (no leading zeros) or fd00::/8", shorten(text))
	case prefix.Addr().Is4In6():
		return prefix, fmt.Sprintf("is %q; write it as an IPv4 range", text)
	case prefix != prefix.Masked():
		return prefix, fmt.Sprintf("is %q, which has bits set beyond its length; write %s", text, prefix.Masked())
	}
	return prefix, ""
}
