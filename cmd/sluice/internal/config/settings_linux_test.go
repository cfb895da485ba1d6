package config

import "testing"

// TestAPISocket: beside the handover socket, or where commands look first.
func TestAPISocket(t *testing.T) {
	for _, x := range []struct{ flag, want string }{
		{"--handover-socket=/run/x/handover.sock", "/run/x/api.sock"},
		{"--pid-file=/run/sluice.pid", DefaultAPISocket},
		{"--api-socket=", DefaultAPISocket},
		{"--api-socket=none", NoSocket},
		{"--api-socket=/a/b", "/a/b"},
	} {
		c, err := Parse([]string{"--manifests=/m", x.flag})
		if p := &c.Process; err != nil || p.APISocket != x.want || p.APIRequested != (x.flag[:6] == "--api-" &&
			x.flag != "--api-socket=") {
			t.Errorf("%s: %q, %v, %v, want %q", x.flag, p.APISocket, p.APIRequested, err, x.want)
		}
	}
}
