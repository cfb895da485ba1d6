// Command sluice is a userspace L4 load balancer for Kubernetes Services.
package main

import (
	"os"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/command"
)

// Set by the linker (see Makefile). Empty: what Go has recorded counts.
var version, commit string

func main() {
	os.Exit(command.Main(command.Build{Version: version, Commit: commit}.Complete(), os.Args[1:], os.Stdout, os.Stderr))
}
