// Package metrics turns the Stats of the packages into Prometheus series; the data path
// counts and imports no library.
//
// Series are read at each scrape, so that each number is kept in one place. No
// series has a label whose values grow with traffic.
package metrics
