package agent

import "time"

// paceBurst is how many writings may follow each other at once after quiet: to create
// a Service and then its endpoints are two changes, and neither should wait. kube-proxy
// allowed as many until 1.35.
const paceBurst = 2

// pace bounds how often the kernel's rules are written, from start to start: once in a
// period in the long run, paceBurst times at once after as many periods of quiet. With a
// period of 0 it bounds nothing.
type pace struct {
	period time.Duration
	next   time.Time // when, at one writing in each period, the next would be due
}

// wait returns how long to wait before rules may be written.
func (p *pace) wait(now time.Time) time.Duration {
	if p.period <= 0 {
		return 0
	}
	return max(0, p.next.Add(-(paceBurst-1)*p.period).Sub(now))
}

// note notes that rules are written now.
func (p *pace) note(now time.Time) {
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(p.period)
}
