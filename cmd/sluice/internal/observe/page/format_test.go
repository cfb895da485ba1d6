package page

import (
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/history"
)

func TestFormat(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 0.001: "0.01", 0.04: "0.04", 0.2: "0.2", 1: "1", 1.25: "1.2",
		12:    "12",
		999.4: "999", 999.6: "1.0\u00a0k", 12345: "12\u00a0k", 1.5e6: "1.5\u00a0M", 3e21: "3000\u00a0E"} {
		if got := short(n, ""); got != want {
			t.Errorf("short(%v) = %q, want %q", n, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0\u00a0B", 999: "999\u00a0B", 1000: "1.0\u00a0kB",
		271e6: "271\u00a0MB"} {
		if got := bytesOf(n); got != want {
			t.Errorf("bytesOf(%d) = %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567"} {
		if got := count(n); got != want {
			t.Errorf("count(%d) = %q, want %q", n, got, want)
		}
	}
	now := time.Date(2026, 11, 26, 4, 0, 0, 0, time.UTC)
	for d, want := range map[time.Duration]string{0: "now", -time.Second: "now", 59 * time.Second: "59\u00a0s ago",
		61 * time.Minute: "1\u00a0h 1\u00a0min ago", 49 * time.Hour: "2\u00a0d 1\u00a0h ago"} {
		if got := ago(now, now.Add(-d)); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
	if got := ago(now, (*time.Time)(nil)); got != "never" {
		t.Errorf("no time is %q", got)
	}
	for text, want := range map[string]string{"short": "short", "0123456789": "0123…789", "ääääääääää": "ääää…äää"} {
		if got := cut(text, 8); got != want {
			t.Errorf("cut(%q) = %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]string{"a/b-c.d": "a/b-c.d", "": "''", "a b": "'a b'", "it's": `'it'\''s'`,
		"a\nb": "'a\nb'"} {
		if got := shellWord(text); got != want {
			t.Errorf("shellWord(%q) = %q, want %q", text, got, want)
		}
	}
}

// TestTells: a row says how many clients wait, and why a Service is down.
func TestTells(t *testing.T) {
	s := &history.Service{Counts: history.Counts{Open: 40}, Waiting: 13, Endpoints: 2, Eligible: 2}
	if got := open(s); got != (number{Text: "40", Note: "13 waiting"}) || s.State() != history.Partial || lacks(s) != "" {
		t.Errorf("clients wait: %+v, state %d, %q", got, s.State(), lacks(s))
	}
	for want, s := range map[string]history.Service{
		"it has no endpoints":                        {},
		"no endpoint gets new connections":           {Endpoints: 2},
		"1 endpoint is ejected or failing its probe": {Endpoints: 3, Eligible: 2, Failing: 1},
		"2 endpoints get no new connections":         {Endpoints: 3, Eligible: 1},
	} {
		if got := lacks(&s); got != want {
			t.Errorf("%+v: %q, want %q", s, got, want)
		}
	}
}
