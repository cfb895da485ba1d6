// Package accesslog writes a line for each connection, association and flow that has ended and is to be logged, as JSON
// or as HAProxy's tcplog has it.
//
// A loop never waits for it: each has a bounded queue of its own, made with its first line. What finds it full is
// counted and lost. A line is written within 10 ms, with those of that time.
//
// Goroutines: one for each loop that has had a line, which writes; Close joins them.
package accesslog
