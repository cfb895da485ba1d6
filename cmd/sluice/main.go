// Command sluice is a userspace L4 load balancer for Kubernetes Services.
package main

import (
	"os"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/command"
)

// version is set by the linker (see Makefile).
var version = "unknown"

func main() {
	os.Exit(command.Main(version, os.Args[1:], os.Stdout, os.Stderr))
}
