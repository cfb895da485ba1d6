//go:build !linux

package redirect

import (
	"context"
	"errors"
	"net/netip"
)

type kernel struct{ none }

func (*kernel) probe(context.Context) (Facts, error) { return Facts{}, errors.ErrUnsupported }

type nftKernel struct{ none }

func (*nftKernel) probe(context.Context) error { return errors.ErrUnsupported }

func (*nftKernel) renew() error { return errors.ErrUnsupported }

// none is what no packet filter can do.
type none struct{}

func (*none) stats() Stats { return Stats{} }

func (*none) sync(context.Context, Update) error { return errors.ErrUnsupported }

func (*none) verify(context.Context) (bool, error) { return false, errors.ErrUnsupported }

func (*none) leftover(context.Context) Leftover { return Leftover{} }

func cleanup(context.Context) error { return errors.ErrUnsupported }

func originalDst(int) (netip.AddrPort, error) { return netip.AddrPort{}, errors.ErrUnsupported }
