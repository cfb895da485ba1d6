// Package journal remembers the last changes and reports of a running Sluice, and writes each of them to the log: an
// entry is said once, and both have it. The API shows what is remembered.
//
// Entries of Report are as many as there are. Those of Services, which come by the thousand at a start and in a storm
// of changes, are bounded: beyond a burst they are counted, and a summary follows within summaryEvery. The loss of all
// endpoints of a Service is written up to lossPatience later, when it is known whether the Service goes, too.
//
// Nothing here blocks but Wait, for which nothing waits, and all methods may be called by any goroutine.
//
// Goroutines: that of a timer while a summary or a loss waits, none after Close.
package journal
