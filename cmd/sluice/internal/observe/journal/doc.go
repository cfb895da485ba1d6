// Package journal remembers the last changes and reports of a running Sluice, and writes each of them to the log: an
// entry is said once, and both have it. The API shows what is remembered.
//
// Entries of Report are as many as there are. Those of Services, which come by the thousand at a start and in a storm
// of changes, are bounded: beyond a burst they are counted, and a summary follows within summaryEvery.
//
// Nothing here blocks but Wait, for which nothing waits, and all methods may be called by any goroutine.
//
// Goroutines: that of a timer while a summary is due, none after Close.
package journal
