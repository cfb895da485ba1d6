//go:build !linux

package node

// FileLimit returns 0: no limit is known on this platform.
func FileLimit(int) (int64, error) { return 0, nil }
