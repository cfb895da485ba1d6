package manifest

import "sync"

// large is how many bytes a file may have that is decoded while others wait: those take some 50 ms.
const large = 256 << 10

// apart decodes large files beside everything else, one after the other: a Service of 65,535 ports takes a second.
type apart struct {
	decoded chan struct{} // one token: there is something to be looked at
	one     sync.Mutex    // held while a file is decoded
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
		select {
		case a.decoded <- struct{}{}:
		default: // a token lies there already
		}
	})
}
