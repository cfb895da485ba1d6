// Package stats is the arithmetic of the measurements: medians, and ratios of runs that
// were made side by side. It is pure: the same numbers give the same answers.
//
// A figure that could not be measured is NaN, and is left out of whatever is
// computed; a sum of nothing but NaN is NaN.
package stats
