//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "vm: needs Linux")
	os.Exit(hostFailed)
}

// hostFailed is the exit status of a failure that is not the binary's.
const hostFailed = 99
