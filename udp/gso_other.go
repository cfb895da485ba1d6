//go:build !linux

package udp

// CorruptsGSO reports false: GSO is used on Linux only.
func CorruptsGSO() (release string, corrupts bool) { return "", false }
