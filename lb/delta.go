package lb

// Delta says how a Table differs from the one that it was made from. The services are those of
// the tables and must not be changed.
type Delta struct {
	// Whole says that nothing before counts and Added is everything: the table is the
	// first one, or facts about the node have changed, which decide about every service.
	Whole bool

	Added   []*Service
	Removed []*Service // as they were; none if Whole
	Changed []Change   // none if Whole
}

// Change is one service, known by its ID, that is not what it was.
type Change struct {
	Old, New  *Service
	Addresses bool // false: only backends or parameters differ; of backends, also whether they loop
}

// note adds what became of one service: was is nil if it is new.
func (d *Delta) note(was, is *Service) {
	switch {
	case d.Whole || was == nil:
		d.Added = append(d.Added, is)
	case was != is:
		d.Changed = append(d.Changed, Change{was, is, !sameAddresses(was.Addresses, is.Addresses)})
	}
}

// remove adds a service that is gone.
func (d *Delta) remove(was *Service) {
	if !d.Whole {
		d.Removed = append(d.Removed, was)
	}
}
