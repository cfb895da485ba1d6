// Package explain is the subcommand of that name: it shows which endpoint a client is sent
// to and why, by the manifests, and by the rules that this host has.
//
// Goroutines: none.
package explain
