package tcp

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// The kernel chooses the loop of a connection by a hash of its addresses (SO_REUSEPORT, socket(7)), so that of few
// connections one loop may have most, for as long as they last. A loop that has more than another has that serve what
// it accepts, unless its connections are short: those even out by themselves, and to wake another loop for each costs.
const (
	// spreadSlack is the part of a loop's connections by which another may have more: it grows with their number,
	// since a hash spreads many evenly enough.
	spreadSlack = 64

	// all is the value of spread.lasting if every connection has lasted, and few that of one in four. Each counts a
	// lastingShare-th.
	all, few, lastingShare = 256, all / 4, 16
)

// spread is what a shard has for that.
type spread struct {
	lasting int          // how many of its connections have lasted for settleAfter, learned from those before
	coming  atomic.Int64 // how many clients are in the inbox

	mu    sync.Mutex
	inbox []accepted // from other loops; guarded by mu
	spare []accepted // is the next inbox
}

// accepted is a client that has two descriptors of the budget.
type accepted struct {
	fd      int
	peer    netip.AddrPort
	steered bool
}

// lasted notes whether a connection has been a short one.
func (s *spread) lasted(long bool) {
	if s.lasting -= s.lasting / lastingShare; long {
		s.lasting += all / lastingShare
	}
}

// accept serves a client on the loop that is to have it.
func (sh *shard) accept(c accepted) {
	if to := sh.lighter(); to == nil || !to.take(c) {
		sh.serve(c)
		return
	}
	sh.count.Spread.Add(1)
}

// lighter returns the shard with the fewest connections if this one has notably more, or nil.
func (sh *shard) lighter() (to *shard) {
	if sh.spread.lasting < few {
		return nil
	}
	mine := sh.load()
	least := mine
	for _, other := range sh.srv.shards {
		if n := other.load(); n < least && other.mayDial() {
			to, least = other, n
		}
	}
	if mine-least <= least/spreadSlack {
		return nil
	}
	return to
}

// mayDial reports whether the shard may dial for one more: the bound of dials holds for what others accept, too.
func (sh *shard) mayDial() bool {
	return sh.count.Dialling.Load()+sh.spread.coming.Load() < int64(sh.MaxDials)
}

// load is how many connections the shard has, or has been given. Any goroutine may ask.
func (sh *shard) load() int64 { return sh.count.Active.Load() + sh.spread.coming.Load() }

// take has the shard's loop serve a client that another has accepted. false: the loop has ended.
func (sh *shard) take(c accepted) bool {
	s := &sh.spread
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.inbox) == 0 && sh.Loop.Post(sh.takeIn) != nil {
		return false
	}
	s.inbox = append(s.inbox, c)
	s.coming.Add(1)
	return true
}

// takeIn serves the clients that other loops have accepted.
func (sh *shard) takeIn() {
	s := &sh.spread
	s.mu.Lock()
	clients := s.inbox
	s.inbox, s.spare = s.spare[:0], nil
	s.mu.Unlock()
	for _, c := range clients {
		sh.serve(c)
		s.coming.Add(-1)
	}
	s.spare = clients[:0]
}
