package nearest

import (
	"slices"
	"testing"
)

func TestOf(t *testing.T) {
	names := []string{"manifests", "scheduler", "slow-start", "http", "web"}
	for word, want := range map[string]string{"manifest": "manifests", "schedular": "scheduler", "slowStart": "slow-start",
		"htpp": "http", "wbe": "web", "database": "", "web": "", "": ""} {
		if got := Of(word, slices.Values(names)); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}
