// Package policies has what Services can request by annotations sluice.io/..., as one table: the words, what they mean,
// their ranges, the flag that gives the default for all Services, and which data paths have them. Annotations, flags,
// docs/reference/annotations.md and `sluice explain` come from it.
//
// A word that is not in the table, and a value out of range, request nothing and are [Ignored], with what to do about
// it; what else a Service requests holds. What a data path does not have is a [Shortfall].
package policies
