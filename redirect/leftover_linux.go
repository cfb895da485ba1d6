package redirect

import (
	"net/netip"
	"strconv"

	"github.com/sluice-lb/sluice/internal/netfilter"
)

// steeredPort reads the target of the rules in our chain for TCP; all have the same.
func (k *kernel) steeredPort() uint16 {
	rules, err := k.list("nat", k.shape.chain(chainTCP))
	if err != nil {
		return 0
	}
	for _, rule := range rules {
		if port := targetPort(rule); port != 0 {
			return port
		}
	}
	return 0
}

// targetPort returns the port that a rule, as printed by iptables -S, sends packets to.
func targetPort(rule string) uint16 {
	w := netfilter.Words(rule)
	for i := 0; i+1 < len(w); i++ {
		switch w[i] {
		case "--to-ports":
			port, _ := strconv.ParseUint(w[i+1], 10, 16)
			return uint16(port)
		case "--to-destination":
			addr, _ := netip.ParseAddrPort(w[i+1])
			return addr.Port()
		}
	}
	return 0
}
