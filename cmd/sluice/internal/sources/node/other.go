//go:build !linux

package node

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/internal/eventloop"
)

// addressNotice is not built for this system.
type addressNotice struct{}

func newAddressNotice() (*addressNotice, error) { return nil, errors.ErrUnsupported }

func (*addressNotice) changed() bool { return true }

func (*addressNotice) close() error { return nil }

// FileLimit returns 0: no limit is known on this platform.
func FileLimit(int) (int64, error) { return 0, nil }

// FlowLimit returns 0: no limit is known on this platform.
func FlowLimit() (int, error) { return 0, nil }

// Lock is held by the one instance that steers a host's traffic, which nothing checks on
// this system.
type Lock int

// NewLock returns the zero Lock.
func NewLock() (Lock, error) { return 0, nil }

// Ending does nothing.
func (Lock) Ending() {}

// Release does nothing.
func (*Lock) Release() {}

// SetOOMScoreAdj does nothing: there is no such score here.
func SetOOMScoreAdj(int) error { return nil }

// Forwards reports that the kernel forwards nothing.
func Forwards() (out [2]bool) { return out }

// HalfOpen is for what the kernel forwards.
func HalfOpen() (int, error) { return 0, errors.ErrUnsupported }

// SpareProcessor has nothing to do without event loops.
func SpareProcessor(int) {}

// NewLoops returns nil: connections and flows are served by goroutines here.
func NewLoops(int) (*eventloop.Group, error) { return nil, nil }

// Listenable returns addresses as node ports listen on them: in place of all addresses
// each one, since an answer has to come from the one that was asked.
func Listenable(addrs, local []netip.Addr) (out []netip.Addr) {
	for _, a := range addrs {
		if !a.IsUnspecified() {
			out = append(out, a)
			continue
		}
		for _, ip := range local {
			if ip.Is6() == a.Is6() {
				out = append(out, ip)
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}
