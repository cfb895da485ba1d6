package redirect

import (
	"context"
	"maps"
	"slices"

	"github.com/sluice-lb/sluice/lb"
)

// steerer is what steering has in common whatever the packet filter: the entries, and what an
// update makes of them.
type steerer struct {
	host    Host
	entries map[lb.Frontend]Entry
	rules   rules // nil before the first Sync that could probe

	started bool // what an earlier process, and kube-proxy's userspace mode, have left is gone
}

// rules are what entries come to in a packet filter.
type rules interface {
	// change counts entries that go and come.
	change(gone, come []Entry)
	// setHost changes what all entries share.
	setHost(Host)
	// Known reports whether the kernel is known to be as written last.
	Known() bool
	// write makes the kernel hold it.
	write(context.Context) error
	// Verify reports whether the kernel holds what was written last.
	Verify(context.Context) (bool, error)
}

// filter is a packet filter of one address family.
type filter interface {
	// open probes, and returns the rules of some entries, which they keep.
	open(ctx context.Context, host Host, entries map[lb.Frontend]Entry) (rules, error)
	// read reads where the rules of earlier steerers lead.
	read(context.Context) (Leftover, error)
	// succeed removes what others have left, which is for after the first time that rules were written.
	succeed(context.Context) error
}

// sync is Sync.
func (s *steerer) sync(ctx context.Context, f filter, ipv6 bool, u Update) error {
	p, err := u.family(ipv6)
	if err != nil {
		return err
	}
	if err := s.fold(u.Whole, p); err != nil {
		return err
	}
	if s.rules == nil {
		if s.rules, err = f.open(ctx, s.host, s.entries); err != nil {
			return err
		}
	}
	if err := s.rules.write(ctx); err != nil {
		return err
	}
	if !s.started {
		if err := f.succeed(ctx); err != nil {
			return err
		}
		s.started = true
	}
	return nil
}

// fold brings the entries, and the ruleset if there is one, to what they are after an
// update, which changes nothing if it contradicts them.
func (s *steerer) fold(whole bool, p part) error {
	if s.entries == nil {
		s.entries = make(map[lb.Frontend]Entry, len(p.come))
	}
	gone, come, err := s.exchange(whole, p)
	if err != nil {
		return err
	}
	s.host = p.host
	if s.rules != nil {
		s.rules.change(gone, come)
		s.rules.setHost(p.host)
	}
	return nil
}

// exchange replaces entries, and returns those that were there and those that are.
func (s *steerer) exchange(whole bool, p part) (gone, come []Entry, err error) {
	going := slices.Values(p.gone)
	if whole {
		going = maps.Keys(s.entries)
	}
	take := func(f lb.Frontend) {
		if e, there := s.entries[f]; there {
			gone = append(gone, e)
			delete(s.entries, f)
		}
	}
	if !whole && len(p.come) == 0 {
		for f := range going {
			take(f)
		}
		return gone, nil, nil
	}
	goes := make(map[lb.Frontend]bool)
	for f := range going {
		goes[f] = true
	}
	for _, e := range p.come {
		f := e.Frontend
		was, there := s.entries[f]
		switch {
		case there && was.Equal(e):
			delete(goes, f)
			continue
		case there && !goes[f]:
			for i := range come {
				delete(s.entries, come[i].Frontend)
			}
			maps.Copy(s.entries, byFrontend(gone))
			return nil, nil, contradiction(f, was.conflict(e))
		case there:
			gone = append(gone, was)
			delete(goes, f)
		case come == nil:
			come = make([]Entry, 0, len(p.come))
		}
		s.entries[f], come = e, append(come, e)
	}
	for f := range goes {
		take(f)
	}
	return gone, come, nil
}
