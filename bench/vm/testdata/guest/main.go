// Command guest is what the tests of vm run in a machine.
package main

import (
	"fmt"
	"os"
	"syscall"
)

func main() {
	switch os.Args[1] {
	case "say":
		fmt.Print("one\ntwo \x00\xff\r\n")
		fmt.Println("SLUICE_TRY=" + os.Getenv("SLUICE_TRY"))
		os.Exit(0)
	case "exit":
		fmt.Println("ending with 7")
		os.Exit(7)
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "panic":
		_ = os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0)
	case "hang":
		fmt.Println("hanging")
	}
	for {
		syscall.Pause()
	}
}
