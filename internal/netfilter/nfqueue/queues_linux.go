package nfqueue

import (
	"errors"
	"time"
)

// Queues are consecutive queues of this process. Make them by Open.
type Queues struct{ list []*queue }

// Stats count packets, of all queues.
type Stats struct {
	Packets uint64 // that were decided
	Odd     uint64 // of them, those that do not show their ports: they were dropped
	Missed  uint64 // that found a queue full and went on as they came
}

// Verdict is what becomes of a packet.
type Verdict struct {
	Action Action
	Mark   uint32 // that it gets
}

// Action says whether a packet goes on.
type Action uint32

// The actions (linux/netfilter.h).
const (
	Drop   Action = 0
	Accept Action = 1
)

// Open binds the queues from first on. decide says what becomes of a packet, which it must not keep. Each
// queue calls it on a goroutine of its own, which has a thread. took gets how long it was from when some packets were
// read until the kernel had taken their verdicts, and with them the packets as far as they go at once; nil: it is not
// measured. The error wraps syscall.EPERM if we may not, or if another process has one of the queues.
func Open(first, count uint16, decide func(*Packet) Verdict, took func(packets int, d time.Duration)) (*Queues, error) {
	q := new(Queues)
	for i := range count {
		one, err := open(first+i, decide, took)
		if err != nil {
			return nil, errors.Join(err, q.Close())
		}
		q.list = append(q.list, one)
	}
	return q, nil
}

// Stats may be called by any goroutine, also after Close.
func (q *Queues) Stats() (s Stats) {
	for _, one := range q.list {
		s.Packets += one.packets.Load()
		s.Odd += one.odd.Load()
		s.Missed += one.missed.Load()
	}
	return s
}

// Close decides what has come, and ends the goroutines. decide is not called afterwards.
func (q *Queues) Close() error {
	var errs []error
	for _, one := range q.list {
		errs = append(errs, one.close())
	}
	return errors.Join(errs...)
}
