package tcp

import (
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestGoroutines has a Server without event loops pass the tests of one that has them,
// but for those about loops, buffers and pipes.
func TestGoroutines(t *testing.T) {
	withoutLoops = true
	defer func() { withoutLoops = false }()
	testbed.RunEach(t,
		TestRoundRobinIsExact, TestListenOnTheFrontendItself, TestNobodyToAsk, TestNoBackend,
		TestRefusingBackendIsNotNoticed, TestEveryBackendRefuses, TestSilentBackend, TestClientLeavesWhileDialling,
		TestMaxDialsPausesAccepting, TestDescriptorBudget, TestListenIsExclusive, TestUnlisten, TestServiceStats,
		TestShutdownDrains, TestShutdownDeadline, TestBothWaysAtOnce, TestHalfClose, TestResetIsPassedOn, TestStorm,
		TestAnnounced, TestAnnouncedBulk)
}
