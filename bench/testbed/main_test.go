package testbed

import (
	"fmt"
	"os"
	"testing"
)

// programVar makes the test binary behave as one of the programs below instead.
const programVar = "TESTBED_TEST_PROGRAM"

// programs are those that a test needs as a process of its own.
var programs = map[string]func(){}

func TestMain(m *testing.M) {
	if name := os.Getenv(programVar); name != "" {
		program, ok := programs[name]
		if !ok {
			fmt.Fprintln(os.Stderr, "no such program:", name)
			os.Exit(2)
		}
		program()
		os.Exit(0)
	}
	os.Exit(Main(m))
}

func TestConfigLimits(t *testing.T) {
	for _, cfg := range []Config{{Clients: 101}, {Pods: 201}, {RemotePods: 201}} {
		if tb, err := New(cfg); err == nil {
			tb.Close()
			t.Errorf("New(%+v) did not fail", cfg)
		}
	}
}

func TestNumericAddresses(t *testing.T) {
	for address, ok := range map[string]bool{
		":80": true, "192.0.2.1:80": true, "[2001:db8::1]:80": true, "[::]:0": true,
		"localhost:80": false, "pod-0:80": false, "192.0.2.1": false, "": false,
	} {
		if err := checkNumeric(address); (err == nil) != ok {
			t.Errorf("checkNumeric(%q) = %v, want success %v", address, err, ok)
		}
	}
}
