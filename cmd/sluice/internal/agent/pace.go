package agent

import "time"

// paceTime is how long the kernel's rules are written in a period at the most: what one tenant changes all the
// time may delay what another changes, and a part of a core is to be left.
const paceTime = 200 * time.Millisecond

// pace bounds how long the kernel's rules are written: after a writing that took a part of paceTime the next one
// waits for that part of the period, from start to start. With a period of 0 it bounds nothing.
type pace struct {
	period time.Duration
	next   time.Time
}

// wait returns how long to wait before rules may be written.
func (p *pace) wait(now time.Time) time.Duration { return max(0, p.next.Sub(now)) }

// note notes that rules were written, and how long that took.
func (p *pace) note(start time.Time, took time.Duration) {
	p.next = start.Add(time.Duration(min(1, float64(took)/float64(paceTime)) * float64(p.period)))
}
