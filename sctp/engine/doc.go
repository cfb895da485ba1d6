// Package engine is what the two engines of package sctp have in common: their configuration, their counters,
// and what one of them passes to another one in a hand-over.
package engine
