// Package lists has long lists that differ little from each other, as those of a cluster before and after a change.
// A list is never changed, so that it may be read by any goroutine. All is pure.
package lists
