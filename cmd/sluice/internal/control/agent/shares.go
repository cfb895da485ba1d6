package agent

import (
	"errors"
	"fmt"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
)

// shares are what Services have of the file descriptors by the sockets that they are served by. These are open as long
// as the Service is served, and so may keep others from being served.
type shares struct {
	owners map[lb.Frontend]lb.Name // of open sockets
	held   map[lb.Name]int         // how many frontends with one each Service has

	short     map[lb.Frontend]lb.ID // those that are to have a socket, and get none
	shortOf   map[lb.Name]int       // how many each Service has
	shortages []Shortage            // that have begun or ended since they were last taken
}

func newShares() shares {
	return shares{owners: make(map[lb.Frontend]lb.Name), held: make(map[lb.Name]int),
		short: make(map[lb.Frontend]lb.ID), shortOf: make(map[lb.Name]int)}
}

// Shortage is that ports of a Service are not served, since file descriptors are few.
type Shortage struct {
	Service lb.ID // of the first that is not
	Err     error // nil: it is over, all are
}

// keep notes an open socket of a Service, in place of any before of the frontend.
func (s *sockets) keep(so Socket, of lb.Name) {
	s.forget(so.Frontend)
	s.open[so.Frontend], s.owners[so.Frontend] = so, of
	s.held[of]++
	s.supplied(so.Frontend)
}

// forget forgets the socket of a frontend.
func (s *sockets) forget(f lb.Frontend) {
	of, ok := s.owners[f]
	if !ok {
		return
	}
	delete(s.open, f)
	delete(s.owners, f)
	decrement(s.held, of)
}

// decrement counts one less, and reports whether none is left.
func decrement(counts map[lb.Name]int, of lb.Name) bool {
	counts[of]--
	if counts[of] == 0 {
		delete(counts, of)
		return true
	}
	return false
}

// room returns an error for a frontend if its Service has so many sockets that others need the rest.
func (s *sockets) room(f lb.Frontend, id lb.ID) error {
	have := s.held[id.Service()]
	if s.config.Room == nil || s.config.Room(have) {
		return nil
	}
	if _, again := s.short[f]; !again {
		s.config.LB.ExceedsShare(id, 1)
	}
	return fmt.Errorf("%w: the Service has sockets for %d of its ports, its share", eventloop.ErrDescriptors, have)
}

// lacks notes that a frontend gets no socket because file descriptors are few. False: err says something else.
func (s *sockets) lacks(f lb.Frontend, id lb.ID, err error) bool {
	if !errors.Is(err, eventloop.ErrDescriptors) {
		return false
	}
	if was, ok := s.short[f]; ok && was.Service() == id.Service() {
		return true
	}
	s.supplied(f)
	s.short[f] = id
	if s.shortOf[id.Service()]++; s.shortOf[id.Service()] == 1 {
		s.shortages = append(s.shortages, Shortage{id, err})
	}
	return true
}

// supplied notes that a frontend has a socket, or is to have none.
func (s *sockets) supplied(f lb.Frontend) {
	id, ok := s.short[f]
	if !ok {
		return
	}
	delete(s.short, f)
	if decrement(s.shortOf, id.Service()) {
		s.shortages = append(s.shortages, Shortage{Service: id})
	}
}

// owner returns the Service that a frontend is of in a table; the zero Name: none.
func owner(table *lb.Table, f lb.Frontend) (of lb.Name) {
	if service, _, ok := table.Lookup(f); ok {
		of = service.ID.Service()
	}
	return of
}
