// Package history remembers what the node, and the Services with most traffic, have done in the last 15 minutes, and
// says what each Service does now, as rates.
//
// A Recorder looks at the counters of every service port every 5 s, and keeps the differences: of the node 180 samples,
// and as many of each of at most 64 Services, which is 1 MB. To have rates it keeps besides what was counted at the
// last two looks, 128 bytes a Service each. A look at 10,000 Services of three endpoints takes 3 to 5 ms, which is
// 0.1 % of a processor.
//
// The same look reports which Services have refused clients, at a bounded rate, so that no loop has to log.
//
// Samples of the node cross a hand-over, since the successor asks for them by the API; those of Services do not.
//
// All methods may be called by any goroutine. Goroutines: none; Run is one of its caller.
package history
