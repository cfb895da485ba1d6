// Package report keeps what was measured, compares it, judges it by the project's
// targets, and shows it: as a table for the terminal, as Markdown, and as SVG pictures. It
// is pure: the same samples give the same bytes. A figure that could not be measured is NaN.
//
// Metrics: cpu is the processor time of the proxy's process per unit of work, and core
// the time that its core was not idle, which adds what the kernel does in interrupts
// for no process in particular. machine is the time of all cores, with load and servers:
// what the kernel's own paths cost is in the time of those who send. rate is work per second; p50,
// p99 and p99.9 are latencies; errors and lost are counts.
package report
