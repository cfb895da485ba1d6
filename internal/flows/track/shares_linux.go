package track

import (
	"sync/atomic"

	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/lb"
)

// tally is how many flows each Service and each client has: they have shares of the flows that can be known, as they
// have of descriptors in user space. The zero tally is none. It is for one goroutine.
type tally struct {
	services map[lb.Name]int64
	clients  map[host]int64
}

// host is a client, whatever its ports.
type host [16]byte

// lack is what there is not enough of for one more.
type lack uint8

const (
	enough   lack = iota
	room          // for any
	ofClient      // for this client, which has its share
	ofService
)

// lacks reports what there is not enough of, where some are free.
func (t *tally) lacks(of *shares.Shares, service lb.Name, client host, free int64) lack {
	switch {
	case free <= 0:
		return room
	case !of.Client.Allows(t.clients[client], 1, free):
		return ofClient
	case !of.Service.Allows(t.services[service], 1, free):
		return ofService
	}
	return enough
}

// add adds some to what a Service and a client have.
func (t *tally) add(service lb.Name, client host, n int64) {
	if t.services == nil {
		t.services, t.clients = make(map[lb.Name]int64), make(map[host]int64)
	}
	count(t.services, service, n)
	count(t.clients, client, n)
}

func count[K comparable](of map[K]int64, key K, n int64) {
	if n += of[key]; n == 0 {
		delete(of, key)
	} else {
		of[key] = n
	}
}

func nameOf(id lb.ID) lb.Name { return lb.Name{Namespace: id.Namespace, Name: id.Name} }

// lacks counts what was lacking.
type lacks [ofService + 1]atomic.Uint64

// Lacks count what was not taken in, since there was no room at all, or its client or its Service had its share.
type Lacks struct{ Room, Client, Service uint64 }

func (c *lacks) load() Lacks { return Lacks{c[room].Load(), c[ofClient].Load(), c[ofService].Load()} }
