//go:build !linux

package conntrack

import (
	"errors"
	"net/netip"
)

func deleteUnreplied(bool, []netip.AddrPort, []netip.AddrPort) (uint64, error) {
	return 0, errors.ErrUnsupported
}

func deleteChosen(bool, func(*Entry) bool) (uint64, error) { return 0, errors.ErrUnsupported }

// Conn is a socket for questions about entries.
type Conn struct{}

// Entries calls visit for each entry of a family.
func (*Conn) Entries(bool, func(), func(*Entry)) error { return errors.ErrUnsupported }

func (*Timeouts) read() error { return errors.ErrUnsupported }

type events struct{}

func (events) listen(func(*Event)) error { return errors.ErrUnsupported }

func (events) want([]Want) error { return errors.ErrUnsupported }

func (events) stats() EventStats { return EventStats{} }

func (events) close() error { return errors.ErrUnsupported }

func deleteFlows(*Which, func(*Entry) bool) (uint64, error) {
	return 0, errors.ErrUnsupported
}
