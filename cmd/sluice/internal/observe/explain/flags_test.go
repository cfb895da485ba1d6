package explain

import (
	"io"
	"strings"
	"testing"
)

// TestMisplacedFlags: a flag that is for the other of the two cases is not ignored.
func TestMisplacedFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--zone a web":                              "unknown flag",
		"--node-zone a default/web":                 "--node-zone is for what is computed",
		"--proxy-mode iptables default/web":         "--proxy-mode is for what is computed",
		"--manifests x -o json default/web":         "--output is for what a running process says",
		"--manifests x --api-socket y default/web":  "--api-socket is for what a running process says",
		"--client 192.0.2.1 --api-socket /none a/b": "no running Sluice answers at /none",
	} {
		if err := Run(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("explain %s: %v, want %q", args, err, want)
		}
	}
}
