package testbed

import (
	"fmt"
	"os"
	"testing"
)

// Reexec runs the program again in network and mount namespaces of its own, with
// the same arguments, environment, and standard streams, and ends this process
// with that one's exit status. So it returns only in the second process; or with
// an error, in the first, when namespaces are not to be had. Call it first thing
// in main.
//
// A user namespace, in which the user is root, is added if the program may not
// make the others without. In the second process:
//
//   - the network has nothing but a loopback interface, which is up;
//   - /run is empty and writable, so that the lock of iptables (/run/xtables.lock)
//     and sockets are shared with no other process;
//   - PATH includes /usr/sbin and /sbin, which have iptables and the like, and which
//     some distributions keep from users;
//   - files have their usual owners and permissions: the user is root for the
//     network, and unchanged for the file system.
//
// The first process passes on SIGINT, SIGQUIT, and SIGTERM, and the second dies
// with it. Programs started by the second that call Reexec go on as they are.
func Reexec() error {
	if err := reexec(); err != nil {
		return fmt.Errorf("enter new namespaces: %w: %w", ErrUnsupported, err)
	}
	return nil
}

// programVar has the name of the program that a test binary runs instead of its tests.
const programVar = "SLUICE_TESTBED_PROGRAM"

// Programs are what a test binary can run instead of its tests, by name: each takes its
// arguments and returns an exit status. [Host.Self] starts one.
type Programs map[string]func(args []string) (status int)

// Main is Reexec for tests:
//
//	func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }
//
// If namespaces are not to be had, it runs the tests where they are: those that
// call [NewT] then skip or fail.
func Main(m *testing.M, programs ...Programs) int {
	if name := os.Getenv(programVar); name != "" {
		for _, p := range programs {
			if program, ok := p[name]; ok {
				return program(os.Args[1:])
			}
		}
		fmt.Fprintln(os.Stderr, "testbed: no such program:", name)
		return 2
	}
	if err := Reexec(); err != nil {
		fmt.Fprintf(os.Stderr, "testbed: %v\n", err)
	}
	return m.Run()
}
