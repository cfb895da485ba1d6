package policies

import (
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// TestShownProbe: a probe is shown without anything that may be a credential.
func TestShownProbe(t *testing.T) {
	for text, want := range map[string]string{
		`{httpGet: {path: "/h?token=S", port: 8081, httpHeaders: [{name: A, value: S}]}, periodSeconds: 5}`: "{httpGet: {port: 8081, ...}, periodSeconds: 5}",
		"tcpSocket: {}":               "{tcpSocket: {...}}",
		"{udp: {send: S, expect: S}}": "{udp: {...}}",
		"S":                           "...",
	} {
		if got := Find(readinessProbe).Shown(&lb.Policies{ReadinessProbe: text}); got != want {
			t.Errorf("%s is shown as %s, want %s", text, got, want)
		}
	}
}
