//go:build !linux

package conntrack

import (
	"errors"
	"iter"
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
)

func deleteUnreplied(bool, []netip.AddrPort, []netip.AddrPort) (uint64, error) {
	return 0, errors.ErrUnsupported
}

func deleteChosen(bool, func(*Entry) bool) (uint64, error) { return 0, errors.ErrUnsupported }

func entries(bool, func(), func(*Entry)) error { return errors.ErrUnsupported }

func (*Timeouts) read() error { return errors.ErrUnsupported }

type events struct{}

func (events) listen(Kinds, func(*Event)) error { return errors.ErrUnsupported }

func (events) only([]netip.Addr) error { return errors.ErrUnsupported }
func (events) all() error              { return errors.ErrUnsupported }
func (events) everything() error       { return errors.ErrUnsupported }

func (events) stats() EventStats { return EventStats{} }

func (events) close() error { return errors.ErrUnsupported }

func deleteFlows(lb.Protocol, bool, iter.Seq[netip.AddrPort], bool, func(*Entry) bool) (uint64, error) {
	return 0, errors.ErrUnsupported
}
