// Package houserules holds the rules of this repository as tests: which package may
// import which, what stands in which file, which words are written, and that documents
// name only what exists. Length of lines, functions and files, comments and the like are
// checked by the linters of "make lint" (.ci/revive.toml).
//
// A rule is a pure function from a tree of files to the places that break it, and has
// small trees that break it. TestRules applies every rule to the repository,
// TestRulesCanFail applies each to its broken trees.
//
// ARCHITECTURE.md and docs/decisions list the ways through the code, under a heading for each:
//
//	### Way of a SYN
//
//	- `tcp/accept.go: listener.accept` takes the connection
//	- `lb/balancer/balancer.go: Balancer.Pick`, `Balancer.Update`
//
// A line names functions, or methods by their receiver's type, and the file in which they
// are declared. There are ways of a SYN, a datagram, a change and an upgrade; the way of a
// change has at most 25 functions.
//
// The package is tests only and nothing imports it.
package houserules
