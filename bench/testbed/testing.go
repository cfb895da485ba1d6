package testbed

import (
	"errors"
	"os"
	"testing"
)

// RequireVar is an environment variable. Set to 1, as it is in CI, it makes a test
// fail that would otherwise skip because the machine lacks something.
const RequireVar = "SLUICE_REQUIRE_NETNS"

// NewT is [New] for tests: it closes the testbed when the test is over, and calls
// [Missing] where network namespaces are not to be had.
func NewT(t testing.TB, cfg Config) *Testbed {
	t.Helper()
	tb, err := New(cfg)
	if errors.Is(err, ErrUnsupported) {
		Missing(t, err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tb.Close)
	return tb
}

// Missing ends a test that cannot run for the given reason: it skips it, or fails
// it if [RequireVar] is set to 1.
func Missing(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv(RequireVar) == "1" {
		t.Fatalf("cannot test: %s", reason)
	}
	t.Skipf("NOT TESTED: %s (%s=1 makes this a failure)", reason, RequireVar)
}
