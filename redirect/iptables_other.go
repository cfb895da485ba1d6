//go:build !linux

package redirect

import (
	"context"
	"errors"
	"net/netip"
)

type counters struct{}

func (*counters) stats() Stats { return Stats{} }

type kernel struct{}

func (*kernel) probe(context.Context) (Facts, error) { return Facts{}, errors.ErrUnsupported }

func (*kernel) sync(context.Context, Update) error { return errors.ErrUnsupported }

func (*kernel) verify(context.Context) (bool, error) { return false, errors.ErrUnsupported }

func (*kernel) leftover(context.Context) Leftover { return Leftover{} }

func cleanup(context.Context) error { return errors.ErrUnsupported }

func originalDst(int) (netip.AddrPort, error) { return netip.AddrPort{}, errors.ErrUnsupported }
