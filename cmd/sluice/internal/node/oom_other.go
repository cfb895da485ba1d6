//go:build !linux

package node

// SetOOMScoreAdj does nothing: there is no such score here.
func SetOOMScoreAdj(int) error { return nil }
