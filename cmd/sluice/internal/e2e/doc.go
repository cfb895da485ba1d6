// Package e2e holds the end-to-end tests: the whole program, re-executed from the test
// binary, on a small cluster of network namespaces (internal/testbed), fed from a folder of
// manifests.
//
// It counts the milliseconds that connections pause, so it has the cores to itself in make
// test. Tests that count nothing run in parallel.
package e2e
