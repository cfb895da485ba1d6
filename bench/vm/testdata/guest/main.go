// Command guest is what the tests of vm run in a machine.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
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
	case "orphans": // which end while the machine waits for its output to be sent
		runtime.LockOSThread()
		for range 50 {
			cmd := exec.Command(os.Args[0], "hang")
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if err := cmd.Start(); err != nil {
				fmt.Println(err)
			}
		}
		fmt.Print(strings.Repeat("x", 4000))
		os.Exit(0)
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
