// Package events tells people what happens to a node and to Services, where they look
// for it: as Event objects of the Kubernetes API, or in the log where there is none.
//
// Nothing here blocks: what cannot be told in time is dropped and counted.
//
// Goroutines: those of client-go's broadcaster, ended by API.Close, and one for each
// Event on its way, of which there are some 70 at most, each for two minutes at most.
package events
