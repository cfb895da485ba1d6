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

// rejection is why the table does not take a flow. (A flow is refused by its endpoint, with a reset.)
type rejection uint8

const (
	none         rejection = iota
	noRoom                 // for any flow
	clientShare            // its client has its share
	serviceShare           // its Service has its share
	inTable                // it is there; this does not count
)

// reject returns why one more flow is not taken where some are free.
func (t *tally) reject(of *shares.Shares, service lb.Name, client host, free int64) rejection {
	switch {
	case free <= 0:
		return noRoom
	case !of.Client.Allows(t.clients[client], 1, free):
		return clientShare
	case !of.Service.Allows(t.services[service], 1, free):
		return serviceShare
	}
	return none
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

// rejections counts them by their reason.
type rejections [inTable]atomic.Uint64

// Rejections count flows that the table did not take, since there was no room at all, or their client or their Service
// had its share.
type Rejections struct{ Room, Client, Service uint64 }

func (c *rejections) load() Rejections {
	return Rejections{c[noRoom].Load(), c[clientShare].Load(), c[serviceShare].Load()}
}
