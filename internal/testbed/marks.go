package testbed

import "testing"

// The marks say in which runs a test of the Makefile is. They do nothing: .ci/test finds the calls, which are the
// first of a test.

// Race marks a test in which goroutines of the program meet. It runs with the race detector, and in make verify only
// so.
func Race(testing.TB) {}

// Timed marks a test that counts milliseconds or memory, or does less with the race detector: it always runs without
// it.
func Timed(testing.TB) {}

// Sequential marks a test in which one goroutine does it all: it never runs with the race detector.
func Sequential(testing.TB) {}

// Native marks a test that never runs under QEMU's emulation: it computes for minutes there, counts milliseconds, or
// needs what QEMU does not have.
func Native(testing.TB) {}

// VM marks a test of the whole program that also runs in a virtual machine, whose kernel has ip_vs, SCTP and dummy
// devices. Of its subtests those run that are named for ipvs.
func VM(testing.TB) {}
