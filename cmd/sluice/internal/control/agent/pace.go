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

const (
	// lookPause is the shortest time from the end of a look to the next.
	lookPause = 50 * time.Millisecond

	// Looks, and the repairs that follow, take one part of lookShare of the time in the long run. After quiet
	// they take their part of lookCredit at once: what is damaged after a long repair is not to wait for
	// as many times as long. No more is owed either, so that none waits for longer than that.
	lookShare  = 20
	lookCredit = time.Minute

	// mostGiven is how many looks in a row give way to changes, so that those of each moment do not hide for ever what
	// another program does.
	mostGiven = 4
)

// looks bounds how often rules are verified because of Suspect.
type looks struct {
	next time.Time // the earliest
	even time.Time // when they have had no more than their part

	given int // how many in a row have given way to a change
}

// wait returns how long to wait before rules may be verified.
func (l *looks) wait(now time.Time) time.Duration { return max(0, l.next.Sub(now)) }

// spend notes that a look, or a repair, has taken from start until now.
func (l *looks) spend(start time.Time) { l.note(start, time.Now()) }

func (l *looks) note(start, end time.Time) {
	if least := end.Add(-lookCredit); l.even.Before(least) {
		l.even = least
	}
	l.even = l.even.Add(lookShare * end.Sub(start))
	if most := end.Add(lookCredit); l.even.After(most) {
		l.even = most // a debt that is never paid is none
	}
	if l.next = end.Add(lookPause); l.next.Before(l.even) {
		l.next = l.even
	}
}
