// Package lab is the cluster of the end-to-end tests: the hosts of internal/testbed, with Sluice,
// re-executed from the test binary, on their node. It tests the whole program; kernelmodes/lab tests engines alone.
//
// Goroutines: testbed's.
package lab
