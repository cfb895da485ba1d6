// Package eventloop runs one event loop per core: an epoll instance, a timing wheel and a buffer pool that belong
// to one goroutine.
//
// A Handler is registered once for a descriptor and is called when that becomes ready, edge-triggered (epoll(7));
// posted functions run after a batch of events. All that a Handler touches belongs to its loop, so it needs no
// lock. Other goroutines reach a loop by Post and Do only.
//
// Events are hints: a descriptor that is closed while a batch is being delivered may be given out again within it,
// and its new Handler then sees the event of the old one. A Handler therefore asks the descriptor (read, write,
// connect) and takes EAGAIN for an answer.
//
// The queue of posted functions is gnet/v2's (pkg/queue), the poller is not, since that calls Go's scheduler
// before each sleep, which costs a lone client 10 to 14 % of the processor time; poller.wait says what is done
// instead. What else was measured is in bench/results/eventloop.md.
//
// Goroutines: a Group starts one per loop; Group.Close joins them.
package eventloop
