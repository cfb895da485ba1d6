package manifest

import (
	"fmt"
	"strconv"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kube"
)

// Error is one thing wrong, or worth a warning, in one manifest.
type Error struct {
	// File is the path of the file, or of the folder, as it was given.
	File string
	// Line counts from 1; 0 when the whole file is meant, as when it cannot be
	// opened.
	Line int
	// Kind is what is wrong in one word, for metrics.
	Kind Kind
	// Field is the path of the field that is meant, like spec.ports[0].port; may be empty.
	Field string
	// Reason is one sentence: what is wrong, in which object and field, and what
	// to do about it.
	Reason string
}

// Kind is a kind of problem.
type Kind string

// All kinds.
const (
	Unreadable Kind = "unreadable" // the file cannot be read
	Syntax     Kind = "syntax"     // it is not valid YAML or JSON
	Invalid    Kind = "invalid"    // an object has an unknown field or a value that cannot be used
	Conflict   Kind = "conflict"   // another object has the same name, address or port
	Limit      Kind = "limit"      // it has more documents or values than allowed
	Unwatched  Kind = "unwatched"  // changes are noticed late
	Unread     Kind = "unread"     // it is not read because of its name, or there is nothing to read
)

// Error returns "file:line: reason".
func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s", place(e.File, e.Line), e.Reason)
}

// at returns the error of a document that begins after so many lines of a file.
func (e *Error) at(file string, base int) *Error {
	moved := *e
	moved.File, moved.Line = file, base+e.Line
	return &moved
}

func place(file string, line int) string {
	if line == 0 {
		return file
	}
	return file + ":" + strconv.Itoa(line)
}

// Result is what the manifests say at one moment. Its contents are shared with
// the Loader and with later Results and must not be changed.
type Result struct {
	// Objects are those applied: of each file the last content that was good.
	Objects kube.Objects
	// Problems are what keeps the present content of files from being applied,
	// in the order of the paths, the file names and the lines.
	Problems []*Error
	// Warnings are what does not: objects of other kinds, Services that
	// cannot be reached or that lack the node port they are for, folders without a
	// manifest, files that are named amiss. Same order.
	Warnings []*Error
	// Files is the number of files that were found, and Rejected of those whose present content is not applied.
	Files, Rejected int
	// Lost says that one of the paths cannot be read.
	Lost bool
}

// maxReports bounds the problems, and the warnings, kept of one file: a file
// that is broken in every line is not worth a report for each.
const maxReports = 100

// reports are problems or warnings of one file or document, at most
// maxReports and a last one that says there are more.
type reports []*Error

func (r *reports) add(e *Error) {
	switch n := len(*r); {
	case n < maxReports:
		*r = append(*r, e)
	case n == maxReports:
		*r = append(*r, &Error{File: e.File, Line: e.Line, Kind: e.Kind, Reason: fmt.Sprintf(
			"there is more to report from here on; only the first %d are shown", maxReports)})
	}
}
