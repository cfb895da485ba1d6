//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "demo: needs Linux, for its network namespaces")
	os.Exit(2)
}
