// Package houserules holds the rules of this repository as tests: who may import
// whom, what a file may hold, and that the documents name only what exists.
//
// A rule is a pure function from a tree of files to the places that break it,
// and it brings small trees that do break it. TestRules applies every rule to the
// repository; TestRulesCanFail applies each to its broken trees, so that a rule
// which has stopped to see anything is noticed. TestDocumentsRun executes the
// command blocks that a document marks with "sh run".
//
// To bend a length limit, say why where it is bent:
//
//	//house:allow-long <reason>
//
// in the comment above a function, or above the package clause for a file. No
// other rule has an exception.
//
// The package is tests only and nothing imports it.
package houserules
