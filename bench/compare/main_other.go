//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "compare: needs Linux, for network namespaces")
	os.Exit(1)
}
