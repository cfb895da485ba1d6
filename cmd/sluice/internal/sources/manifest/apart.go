package manifest

import "sync"

// large is how many bytes a file may have that is decoded while others wait: those take some 50 ms.
const large = 256 << 10

// wake holds at most one token: there is something to be looked at.
type wake chan struct{}

func (w wake) notify() {
	select {
	case w <- struct{}{}:
	default: // a token lies there already
	}
}

// apart decodes large files beside everything else, one after the other: a Service of 65,535 ports takes a second.
type apart struct {
	decoded wake
	one     sync.Mutex // held while a file is decoded
	running sync.WaitGroup
}

// decode decodes data, which is to be what f says, and has f looked at then.
func (a *apart) decode(f *file, data []byte) {
	done := make(chan *version, 1)
	f.decoding = done
	a.running.Go(func() {
		a.one.Lock()
		defer a.one.Unlock()
		done <- f.parse(data)
		a.decoded.notify()
	})
}
