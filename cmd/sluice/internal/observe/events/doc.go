// Package events reports what happens to a node and to Services: as Event objects of the
// Kubernetes API, and in the journal, from which the log has them.
//
// Nothing here blocks but Close: events over the rate limit are dropped and counted, and those
// that an API server has not taken for two minutes, or refuses.
//
// Goroutines: one, which writes to the API server, ended and awaited by Recorder.Close.
package events
