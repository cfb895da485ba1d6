// Package metrics turns the Stats of the rooms into Prometheus series. It is the
// only place that knows Prometheus; the data path counts and knows no library.
//
// Series are read at each scrape, so that there is one truth for each number. No
// series has a label whose values grow with traffic.
package metrics
