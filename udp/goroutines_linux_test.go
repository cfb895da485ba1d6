package udp

import (
	"maps"
	"slices"
	"testing"
)

// TestGoroutines runs the tests of a Server with event loops on one without, but
// for those that look into loops and batches, or need a socket that may not broadcast.
func TestGoroutines(t *testing.T) {
	withoutLoops = true
	defer func() { withoutLoops = false }()
	tests := map[string]func(*testing.T){
		"ActivityKeepsAFlow":              TestActivityKeepsAFlow,
		"AnswerAfterRemoval":              TestAnswerAfterRemoval,
		"AnswersKeepAFlow":                TestAnswersKeepAFlow,
		"BackendDies":                     TestBackendDies,
		"Budget":                          TestBudget,
		"ClientIsGone":                    TestClientIsGone,
		"CloseEndsShutdown":               TestCloseEndsShutdown,
		"Echo":                            TestEcho,
		"EveryBackendRefuses":             TestEveryBackendRefuses,
		"FrontendChangesHands":            TestFrontendChangesHands,
		"KernelIsShortOfDescriptors":      TestKernelIsShortOfDescriptors,
		"LeavingFlowsAreEvictedFirst":     TestLeavingFlowsAreEvictedFirst,
		"LongRefusedDatagramIsNotCutOff":  TestLongRefusedDatagramIsNotCutOff,
		"ManyServices":                    TestManyServices,
		"MaxFlows":                        TestMaxFlows,
		"NoQuestionIsLostAtExpiry":        TestNoQuestionIsLostAtExpiry,
		"NoSourcePort":                    TestNoSourcePort,
		"NoEndpoint":                      TestNoEndpoint,
		"NothingIsLeftOpen":               TestNothingIsLeftOpen,
		"NothingIsLostUnderLoad":          TestNothingIsLostUnderLoad,
		"PortIsNotShared":                 TestPortIsNotShared,
		"RefusingBackendIsNotNoticed":     TestRefusingBackendIsNotNoticed,
		"RemovedBackend":                  TestRemovedBackend,
		"RemovedBackendOfListeningClient": TestRemovedBackendOfListeningClient,
		"ServiceBytes":                    TestServiceBytes,
		"ShutdownIsCutShort":              TestShutdownIsCutShort,
		"ShutdownWaitsForFlows":           TestShutdownWaitsForFlows,
		"Sizes":                           TestSizes,
		"ThousandClients":                 TestThousandClients,
		"Unlisten":                        TestUnlisten,
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		t.Run(name, tests[name])
	}
}
