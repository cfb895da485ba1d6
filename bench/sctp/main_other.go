//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "sctp: needs Linux, for network namespaces")
	os.Exit(1)
}
