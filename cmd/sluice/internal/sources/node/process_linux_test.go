package node

import "testing"

func TestEphemeralPorts(t *testing.T) {
	tests := []struct {
		ports, reserved string
		want            int
	}{
		{"32768\t60999\n", "\n", 28232},
		{"32768\t60999\n", "30000-32769,40000,60990-65535\n", 28232 - 2 - 1 - 10},
		{"40000\t40003\n", "8080,9000-9100\n", 4},
		{"40000\t40003\n", "1-65535\n", 0},
	}
	for _, tt := range tests {
		if n, err := ephemeralPorts(tt.ports, tt.reserved); err != nil || n != tt.want {
			t.Errorf("ephemeralPorts(%q, %q) = %d, %v; want %d", tt.ports, tt.reserved, n, err, tt.want)
		}
	}
	for _, wrong := range [][2]string{{"", ""}, {"32768 ports", ""}, {"32768 60999", "a-b"}} {
		if n, err := ephemeralPorts(wrong[0], wrong[1]); err == nil {
			t.Errorf("ephemeralPorts(%q, %q) = %d, want an error", wrong[0], wrong[1], n)
		}
	}
	if n, err := FlowLimit(); err != nil || n < 1 || n > 32768 {
		t.Errorf("FlowLimit = %d, %v", n, err)
	}
}
