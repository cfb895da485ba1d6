package lb

import (
	"maps"
	"slices"
)

// Delta says how a Table differs from the one that it was made from. The services are those of
// the tables and must not be changed.
type Delta struct {
	// Whole says that nothing before counts and Added is everything: the table is the
	// first one, or facts about the node have changed, which decide about every service.
	Whole bool

	Added   []*Service
	Removed []*Service // as they were; none if Whole
	Changed []Change   // none if Whole

	// Losers are the services with addresses that other services own, as far as that has changed; all of them if Whole.
	Losers []Loser
}

// Change is one service, known by its ID, that is not what it was.
type Change struct {
	Old, New  *Service
	Addresses bool // false: only backends or parameters differ; of backends, also whether they loop
}

// ID names the service.
func (c Change) ID() ID {
	if c.New == nil {
		return c.Old.ID
	}
	return c.New.ID
}

// Unwritten returns what a delta changes for a writer of one address family: Old is the service that it has written.
// written is what the writer keeps of each service, and of returns the service that this was written from.
func Unwritten[W any](d *Delta, ipv6 bool, written map[ID]W, of func(W) *Service) (out []Change) {
	note := func(id ID, now *Service) {
		c := Change{New: now}
		if w, has := written[id]; has {
			c.Old = of(w)
		}
		if !c.Old.Equal(now) {
			c.Addresses = c.Old == nil || now == nil || !c.Old.SameAddresses(now)
			out = append(out, c)
		}
	}
	if d.Whole {
		gone := maps.Clone(written)
		for _, s := range d.Added {
			delete(gone, s.ID)
		}
		for id := range gone {
			note(id, nil)
		}
	}
	for _, s := range d.Removed {
		note(s.ID, nil)
	}
	for _, c := range d.Changed {
		if c.New.IPv6 == ipv6 {
			note(c.New.ID, c.New)
		}
	}
	for _, s := range d.Added {
		if s.IPv6 == ipv6 {
			note(s.ID, s)
		}
	}
	return out
}

// Note adds what became of one service: was is nil if it is new, and is if it is gone. Nothing differs between services
// that are equal. It is for those who have services one by one.
func (d *Delta) Note(was, is *Service) {
	switch {
	case was != nil && is == nil:
		d.Removed = append(d.Removed, was)
	case is != nil && (was == nil || d.Whole || !was.Equal(is)):
		d.note(was, is)
	}
}

// note adds what became of one service that there is: was is nil if it is new.
func (d *Delta) note(was, is *Service) {
	switch {
	case d.Whole || was == nil:
		d.Added = append(d.Added, is)
	case was != is:
		d.Changed = append(d.Changed, Change{was, is, !sameAddresses(was.Addresses, is.Addresses)})
	}
}

// remove adds a service that is gone.
func (d *Delta) remove(was *record) {
	d.Removed = append(d.Removed, was.is)
	if was.taken() != nil {
		d.Losers = append(d.Losers, Loser{Service: was.is.ID})
	}
}

// lost adds what other services own of one service, if t says something else.
func (d *Delta) lost(t *Table, is *record) {
	var was []Taken
	if slot, ok := t.index.slot(is.is.ID); ok && !d.Whole {
		was = t.records.at(slot).taken()
	}
	if now := is.taken(); !slices.Equal(now, was) {
		d.Losers = append(d.Losers, Loser{is.is.ID, now})
	}
}
