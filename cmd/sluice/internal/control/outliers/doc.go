// Package outliers tries the endpoints that a Balancer has ejected, and reports when one is ejected and when it
// returns.
//
// A trial is a TCP connection that is closed at once. At most 64 are in flight and 100 begin in a second, whatever the
// number of ejected endpoints, so that of more than 100 each has its turn every few seconds. While nothing is ejected
// nothing runs, but for a look at all failures each interval if their share counts (--outlier-failure-percentage).
//
// Goroutines: those of the trials, which Watcher.Run joins.
package outliers
