package testbed

import (
	"os"
	"testing"
)

// programs are those that a test needs as a process of its own.
var programs = Programs{}

func TestMain(m *testing.M) { os.Exit(Main(m, programs)) }

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
