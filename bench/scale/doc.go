// Command scale measures what the number of Services costs: start, rules, memory, the
// time to bring one change into force, and the first connection, at 10, 1,000 and
// 10,000 Services in the same run. It prints a table and fails if a figure is
// beyond its limit; figures of one run are compared as ratios, since machines differ.
//
//	go run ./bench/scale -sluice bin/sluice
package main
