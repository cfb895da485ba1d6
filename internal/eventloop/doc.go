// Package eventloop runs one event loop per core: an epoll instance, a timing
// wheel and a buffer pool that belong to one goroutine.
//
// A Handler is registered once for a descriptor and is told about readiness,
// edge-triggered (epoll(7)); posted functions run after a batch of events. Everything
// that a Handler touches belongs to its loop, so it needs no lock. Other goroutines
// reach a loop by Post and Do only.
//
// Events are hints. A descriptor that is closed while a batch of events is being
// delivered may be given out again by the kernel within the same batch, and its
// new Handler then sees an event that was meant for the old one. A Handler
// therefore asks the descriptor (read, write, connect) and takes EAGAIN for an
// answer; it never concludes anything from an event alone.
//
// Goroutines: a Group starts one per loop; Group.Close joins them.
//
// The package knows no protocol and no backend.
package eventloop

import "time"

// MaxBusyPoll bounds what Group.BusyPoll takes. What is worth it is tens of microseconds.
const MaxBusyPoll = 10 * time.Millisecond
