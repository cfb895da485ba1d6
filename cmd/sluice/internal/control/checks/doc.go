// Package checks makes the active checks that Services request (package probes), and tells a Balancer what comes of
// them. An endpoint counts as good until as many checks in a row have failed as its probe says.
//
// Checks begin spread over their period. Each takes one of 256 slots, fewer where file descriptors are few. Namespaces
// get shares of the slots, and their Services take turns, so a tenant with many or silent endpoints delays its own
// checks only. What several ports of a Service have in common is checked once.
//
// Goroutines: those of the checks in flight, which Checker.Run joins.
package checks
