package config

import "testing"

// TestRedacted: what a URL has of credentials is not shown.
func TestRedacted(t *testing.T) {
	for value, want := range map[string]string{
		"https://user:hunter2@192.0.2.1:6443/x": "https://REDACTED@192.0.2.1:6443/x",
		"https://token@api":                     "https://REDACTED@api",
		"https://192.0.2.1":                     "https://192.0.2.1",
		"/etc/kubernetes/sluice.conf":           "/etc/kubernetes/sluice.conf",
		"127.0.0.1:10249":                       "127.0.0.1:10249",
		"":                                      "",
	} {
		if got := redacted(value); got != want {
			t.Errorf("%q becomes %q, want %q", value, got, want)
		}
	}
}
