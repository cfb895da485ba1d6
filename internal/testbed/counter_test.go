package testbed

import "testing"

// TestFindCounter reads what a host has counted, and says what is missing.
func TestFindCounter(t *testing.T) {
	const snmp = "Ip: Forwarding DefaultTTL\nIp: 1 64\nTcp: RtoAlgorithm MaxConn ActiveOpens\nTcp: 1 -1 4711\nUdp: In\n"
	if n, err := FindCounter(snmp, "Tcp", "ActiveOpens"); n != 4711 || err != nil {
		t.Errorf("ActiveOpens = %d, %v, want 4711", n, err)
	}
	for _, wrong := range []string{"", "Tcp: MaxConn\nTcp: -1\n", "Tcp: ActiveOpens\n", "Tcp: ActiveOpens\nTcp: x\n"} {
		if n, err := FindCounter(wrong, "Tcp", "ActiveOpens"); err == nil {
			t.Errorf("ActiveOpens of %q = %d, want an error", wrong, n)
		}
	}
}
