// Package command is the command line: a table of subcommands, what flags ask for in place
// of serving, the log, and signals. It is apart from package main so that the end-to-end
// tests run the whole program as it is compiled for them.
//
// Goroutines: the one that serves, joined unless a second signal ends the process.
package command
