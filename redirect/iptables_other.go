//go:build !linux

package redirect

import (
	"context"
	"errors"
	"net/netip"
)

type kernel struct{}

func (kernel) probe(context.Context, *IPTables) (Facts, error) { return Facts{}, errors.ErrUnsupported }

func (kernel) sync(context.Context, *IPTables, Plan) error { return errors.ErrUnsupported }

func (kernel) verify(context.Context, *IPTables) (bool, error) { return false, errors.ErrUnsupported }

func (kernel) leftover(context.Context, *IPTables) Leftover { return Leftover{} }

func cleanup(context.Context) error { return errors.ErrUnsupported }

func deleteUnanswered(bool, []netip.AddrPort, []netip.AddrPort) (uint64, error) {
	return 0, errors.ErrUnsupported
}
