//go:build !linux

package conntrack

import (
	"errors"
	"iter"
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
)

func (Settings) apply() ([]string, error) { return nil, errors.ErrUnsupported }

func usage() (entries, limit int, err error) { return 0, 0, errors.ErrUnsupported }

func disableEarlyDemux() error { return errors.ErrUnsupported }

func reuseTimeWait() error { return nil }

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
