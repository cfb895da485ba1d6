package load

import "time"

// worker answers the requests of one listener, one after the other.
type worker struct {
	takes int64 // ns, each
	free  int64 // when it has done all that wait
	queue []job
}

// job is a request, and when it is done.
type job struct {
	conn *sizedConn
	due  int64
}

// newWorker returns one; nil if requests take no time.
func (s *server) newWorker(takes time.Duration) *worker {
	if takes == 0 {
		return nil
	}
	w := &worker{takes: int64(takes)}
	s.workers = append(s.workers, w)
	return w
}

// take queues a request.
func (w *worker) take(c *sizedConn) {
	w.free = max(w.free, now()) + w.takes
	w.queue = append(w.queue, job{c, w.free})
}

// answer answers what is done. A client that has gone is worked for, too.
func (w *worker) answer(s *server) {
	for len(w.queue) > 0 && w.queue[0].due <= now() {
		if c := w.queue[0].conn; s.handlers[c.fd] == handler(c) {
			c.write()
		}
		w.queue = w.queue[1:]
	}
}

// rest returns how long nothing is to be done but for events.
func (s *server) rest() time.Duration {
	rest := int64(sweepEvery)
	for _, w := range s.workers {
		if len(w.queue) > 0 {
			rest = min(rest, max(0, w.queue[0].due-now()))
		}
	}
	return time.Duration(rest).Round(time.Millisecond)
}
