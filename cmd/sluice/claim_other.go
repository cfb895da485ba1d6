//go:build !linux

package main

// claim is the right to steer a host's traffic, which nothing can be on this system.
type claim int

func newClaim() (claim, error) { return 0, nil }

func (*claim) release() {}
