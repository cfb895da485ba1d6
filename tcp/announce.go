package tcp

import (
	"net/netip"

	"github.com/sluice-lb/sluice/internal/proxyproto"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// announcement appends the PROXY header by which the backend of a choice, whose Service has such, hears of a client.
func announcement(b []byte, asked *balancer.Flow, to balancer.Choice, ids *proxyproto.IDs) []byte {
	var id [proxyproto.IDLen]byte
	service := to.Service()
	h := proxyproto.Header{
		Source:      netip.AddrPortFrom(asked.Client, asked.ClientPort),
		Destination: asked.Frontend.Addr,
		UniqueID:    ids.Append(id[:0]),
		Namespace:   service.Namespace,
		Name:        service.Name,
	}
	return h.Append(b, proxyproto.Version(to.ProxyVersion()))
}
