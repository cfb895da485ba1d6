//go:build !linux

package main

// setOOMScoreAdj does nothing: there is no such score here.
func setOOMScoreAdj(int) error { return nil }
