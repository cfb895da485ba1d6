// Package eventloop runs one event loop per core: an epoll instance, a timing
// wheel and a buffer pool that belong to one goroutine.
//
// A Handler is registered once for a descriptor and is called when that becomes ready,
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
// A loop sleeps in epoll_wait(2) without calling Go's scheduler first, which it calls
// once in 5 ms instead: poller.wait says why. Functions are posted through the lock-free
// queue of gnet/v2 (pkg/queue). gnet's poller is not used: it calls the scheduler before
// each sleep, which costs a lone client 10 to 14 % of the processor time. What else was
// measured is in bench/results/eventloop.md.
//
// Goroutines: a Group starts one per loop; Group.Close joins them.
//
// The package depends on no protocol and no backend.
package eventloop
