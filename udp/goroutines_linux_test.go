package udp

import (
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestGoroutines runs the tests of a Server with event loops on one without, but
// for those that look into loops and batches, or need a socket that may not broadcast.
func TestGoroutines(t *testing.T) {
	withoutLoops = true
	defer func() { withoutLoops = false }()
	testbed.RunEach(t,
		TestActivityKeepsAFlow, TestAnnounced, TestAnswerAfterRemoval, TestAnswersKeepAFlow, TestBackendDies,
		TestBudget,
		TestClientIsGone, TestCloseEndsShutdown, TestConversationGoesOn, TestEcho, TestEveryBackendRefuses, TestFrontendChangesHands,
		TestKernelIsShortOfDescriptors, TestLeavingFlowsAreEvictedFirst, TestLongRefusedDatagramIsNotCutOff,
		TestManyServices, TestMaxFlows, TestNoQuestionIsLostAtExpiry, TestNoSourcePort, TestNoEndpoint,
		TestNothingIsLeftOpen, TestNothingIsLostUnderLoad, TestPortIsNotShared, TestRefusingBackendIsNotNoticed,
		TestRemovedBackend, TestRemovedBackendOfListeningClient, TestServiceBytes, TestShutdownIsBrief, TestShutdownIsCutShort,
		TestShutdownWaitsForFlows, TestSizes, TestThousandClients, TestUnlisten)
}
