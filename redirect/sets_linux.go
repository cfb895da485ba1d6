package redirect

import (
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
)

// Names of sets, without their prefix. Node ports are apart, since a member of
// hash:ip,port has one address.
const (
	setTCP        = "TCP"          // TCP frontends
	setTCPNode    = "TCP-NODE"     // TCP node ports
	setUDPPorts   = "UDP-PORTS"    // UDP proxy ports
	setSCTPPorts  = "SCTP-PORTS"   // SCTP proxy ports
	setRefuse     = "REFUSE"       // frontends of any protocol without endpoints
	setRefuseNode = "REFUSE-NODE-" // node ports without endpoints; a protocol follows, as a bitmap holds none
)

// Types of sets (ipset(8)).
const (
	hashIPPort = "hash:ip,port"
	bitmapPort = "bitmap:port"
)

var setTypes = map[string]string{
	setTCP:                 hashIPPort,
	setTCPNode:             bitmapPort,
	setUDPPorts:            bitmapPort,
	setSCTPPorts:           bitmapPort,
	setRefuse:              hashIPPort,
	setRefuseNode + "TCP":  bitmapPort,
	setRefuseNode + "UDP":  bitmapPort,
	setRefuseNode + "SCTP": bitmapPort,
}

// member is an entry of a set. In a bitmap:port only the port is used.
type member struct {
	addr     netip.Addr
	protocol lb.Protocol
	port     uint16
}

// sets maps a set's name, without its prefix, to its members.
type sets map[string]map[member]bool

// members returns what is in each set for the plan, which is one of Plan.family.
func members(p Plan) sets {
	all := make(sets, len(setTypes))
	for name := range setTypes {
		all[name] = make(map[member]bool)
	}
	for _, addr := range p.TCP {
		if nodePort(addr) {
			all[setTCPNode][member{port: addr.Port()}] = true
		} else {
			all[setTCP][member{addr.Addr(), lb.TCP, addr.Port()}] = true
		}
	}
	for _, f := range p.Ported {
		ports := setUDPPorts
		if f.Frontend.Protocol == lb.SCTP {
			ports = setSCTPPorts
		}
		all[ports][member{port: f.Port}] = true
	}
	for _, f := range p.Refuse {
		if nodePort(f.Addr) {
			all[setRefuseNode+f.Protocol.String()][member{port: f.Addr.Port()}] = true
		} else {
			all[setRefuse][member{f.Addr.Addr(), f.Protocol, f.Addr.Port()}] = true
		}
	}
	return all
}
