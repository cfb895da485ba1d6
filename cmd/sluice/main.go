// Command sluice is a userspace L4 load balancer for Kubernetes Services.
package main

import (
	"os"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/command"
)

// Set by the linker (see Makefile).
var (
	version = "unknown"
	commit  string
)

func main() {
	os.Exit(command.Main(command.Build{Version: version, Commit: commit}, os.Args[1:], os.Stdout, os.Stderr))
}
