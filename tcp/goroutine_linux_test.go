package tcp

import (
	"maps"
	"slices"
	"testing"
)

// TestGoroutines has a Server without event loops pass the tests of one that has them,
// but for those about loops, buffers and pipes.
func TestGoroutines(t *testing.T) {
	withoutLoops = true
	defer func() { withoutLoops = false }()
	tests := map[string]func(*testing.T){
		"RoundRobinIsExact":           TestRoundRobinIsExact,
		"ListenOnTheFrontendItself":   TestListenOnTheFrontendItself,
		"NobodyToAsk":                 TestNobodyToAsk,
		"NoBackend":                   TestNoBackend,
		"RefusingBackendIsNotNoticed": TestRefusingBackendIsNotNoticed,
		"EveryBackendRefuses":         TestEveryBackendRefuses,
		"SilentBackend":               TestSilentBackend,
		"ClientLeavesWhileDialling":   TestClientLeavesWhileDialling,
		"MaxDialsPausesAccepting":     TestMaxDialsPausesAccepting,
		"DescriptorBudget":            TestDescriptorBudget,
		"ListenIsExclusive":           TestListenIsExclusive,
		"Unlisten":                    TestUnlisten,
		"ServiceStats":                TestServiceStats,
		"ShutdownDrains":              TestShutdownDrains,
		"ShutdownDeadline":            TestShutdownDeadline,
		"BothWaysAtOnce":              TestBothWaysAtOnce,
		"HalfClose":                   TestHalfClose,
		"ResetIsPassedOn":             TestResetIsPassedOn,
		"Storm":                       TestStorm,
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		t.Run(name, tests[name])
	}
}
