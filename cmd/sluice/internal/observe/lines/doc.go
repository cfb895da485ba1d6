// Package lines lets goroutines that must not wait write lines to what may take none: a queue is bounded, and a line
// that finds it full is lost.
//
// Goroutines: none of its own; the user of a queue runs Serve, and joins it within CloseTimeout.
package lines
