package kube

import (
	"net/netip"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-lb/sluice/lb"
)

func protocolOf(p corev1.Protocol) (lb.Protocol, bool) {
	switch p {
	case corev1.ProtocolTCP, "": // the API's default
		return lb.TCP, true
	case corev1.ProtocolUDP:
		return lb.UDP, true
	case corev1.ProtocolSCTP:
		return lb.SCTP, true
	}
	return 0, false
}

func validPort(port int32) bool { return port >= 1 && port <= 65535 }

// leadingZeros are those of a number of an address.
var leadingZeros = regexp.MustCompile(`(^|[.:/])0+(\d+)`)

// parseAddr reads the IP address of a host as generously as the API server long did:
// IPv4 numbers may have leading zeros, which are decimal, and an IPv4-mapped IPv6
// address is IPv4. Objects stored before the API's validation became strict
// still hold such text. The unspecified address is none: it would stand for a node port.
func parseAddr(text string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		addr, err = netip.ParseAddr(leadingZeros.ReplaceAllString(text, "$1$2"))
	}
	addr = addr.Unmap()
	return addr, err == nil && addr.Zone() == "" && !addr.IsUnspecified()
}

// parsePrefix reads a CIDR likewise. Space around it is ignored, and so are the
// bits below its length.
func parsePrefix(text string) (netip.Prefix, bool) {
	prefix, err := netip.ParsePrefix(leadingZeros.ReplaceAllString(strings.TrimSpace(text), "$1$2"))
	if prefix.Addr().Is4In6() && prefix.Bits() >= 96 {
		prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
	}
	return prefix.Masked(), err == nil
}
