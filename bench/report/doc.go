// Package report keeps what was measured, compares it, judges it by the project's
// targets, and shows it: as a table for the terminal, as JSON, as Markdown, and as
// SVG pictures. It is pure: the same samples give the same bytes.
//
// The JSON has this form ([Report]; durations and sizes have the unit that stands
// beside them, figures that could not be measured are null):
//
//	schema      1; raised when the meaning of a field changes
//	date        when the run began, RFC 3339
//	command     the command line
//	machine     processor, kernel, cores used; how busy it was before, and the share
//	            of time that the hypervisor gave to other machines
//	systems     name and version of each system
//	rounds      how often each system was measured for each workload, interleaved
//	seconds     for how long each time
//	results     one for each workload, system and metric:
//	  workload, system, metric, unit
//	  values            one for each round
//	  median, min, max  of the values
//	  ratio             median over the rounds of this system's value divided by
//	                    Sluice's of the same round; ratio_min and ratio_max likewise
//	verdicts    one for each target: what it wants, what there is, and whether it holds
//	problems    runs that failed, as sentences
//
// Metrics: cpu is the processor time of the proxy's process per unit of work, and core
// the time that its core was not idle, which adds what the kernel does in interrupts
// for no process in particular, and is the only figure for the kernel's own paths. rate
// is work per second; p50, p99 and p99.9 are latencies; errors and lost are counts.
// calls is the number of system calls per unit of work (per MB of bulk), and "calls
// NAME" that of one of them, where they were counted.
package report
