// Package events reports what happens to a node and to Services: as Event objects of the
// Kubernetes API, and in the journal, from which the log has them.
//
// Nothing here blocks: events over the rate limit are dropped and counted.
//
// Goroutines: those of client-go's broadcaster, ended by Recorder.Close, and one for each
// Event on its way, of which there are some 70 at most, each for two minutes at most.
package events
