//go:build !linux

package udp

// There are no loops, and nothing of what they need.
type (
	loopShard    struct{}
	loopListener struct{}
	loopFlow     struct{}
)

func newShards(s *Server) []*shard { return []*shard{newGoroutines(s)} }

// CorruptsGSO reports false: GSO is used on Linux only.
func CorruptsGSO() (release string, corrupts bool) { return "", false }
