//go:build !linux

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
)

var errOther = fmt.Errorf("ipvs: %w: it is part of Linux", errors.ErrUnsupported)

type kernel struct{}

func (*kernel) probe(context.Context) error { return errOther }

func (*kernel) sync(context.Context, *lb.Delta, lb.Node) error { return errOther }

func (*kernel) verify(context.Context) (bool, error) { return false, errOther }

func (*kernel) leftover() (bool, error) { return false, errOther }

func (*kernel) clients(*lb.Service, int64) ([]lb.Client, error) { return nil, errOther }

func (*kernel) fallbacks() []Fallback { return nil }

func (*kernel) stats() Stats { return Stats{} }

func present(context.Context) error { return errOther }

func cleanup(context.Context) error { return errOther }

func removeOthers(bool, []netip.Prefix) (int, error) { return 0, errOther }

func counts(bool, func(lb.Frontend, Counts, map[netip.AddrPort]Counts)) error { return errOther }
