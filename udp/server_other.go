//go:build !linux

package udp

import "net/netip"

// There are no loops, and nothing of what they need.
type (
	loopShard    struct{}
	loopListener struct{}
	loopFlow     struct{}
)

// What only loops read is there without them too, and stays zero.
var (
	_ = &shard{loopShard: loopShard{}}
	_ = &listener{loopListener: loopListener{}}
	_ = &flow{key: flowKey{local: netip.Addr{}, scope: 0}, loopFlow: loopFlow{}}
)

func newShards(s *Server) []*shard { return []*shard{newGoroutines(s)} }

// AvoidGSO reports false: GSO is used on Linux only.
func AvoidGSO() (why string, avoid bool) { return "", false }
