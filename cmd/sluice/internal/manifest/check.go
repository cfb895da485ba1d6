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

// metadata fills in the namespace and checks both names. A Service's name must
// be a DNS label, since it becomes one; other names may have several.
func (c checker) metadata(kind string, meta *metav1.ObjectMeta) {
	if meta.Namespace == "" {
		meta.Namespace = metav1.NamespaceDefault
	}
	c.title = title(kind, meta.Namespace, meta.Name)
	if len(validation.IsDNS1123Label(meta.Namespace)) > 0 {
		c.bad(at("metadata", "namespace"), "is %q, which is no DNS label; %s", shorten(meta.Namespace), labelForm)
	}
	switch {
	case meta.Name == "":
		c.bad(at("metadata", "name"), "is missing; give the object a name")
	case kind == serviceType.Kind && len(validation.IsDNS1123Label(meta.Name)) > 0:
		c.bad(at("metadata", "name"), "is %q, which is no DNS label; %s", shorten(meta.Name), labelForm)
	case len(validation.IsDNS1123Subdomain(meta.Name)) > 0:
		c.bad(at("metadata", "name"), "is %q, which is no DNS name; use DNS labels with dots between them, at most 253 characters", shorten(meta.Name))
	}
}

const labelForm = "use lower-case letters, digits and '-', a letter or digit at each end, at most 63 characters"

// port checks a port number.
func (c checker) port(path []any, port int32) {
	if port < 1 || port > 65535 {
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
