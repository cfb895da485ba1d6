//go:build !linux

package nftables

import (
	"context"
	"errors"
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
)

type kernel struct{}

func (*kernel) probe(context.Context) error { return errors.ErrUnsupported }

func (*kernel) sync(context.Context, *lb.Delta, lb.Node) error { return errors.ErrUnsupported }

func (*kernel) verify(context.Context) (bool, error) { return false, errors.ErrUnsupported }

func (*kernel) renew() error { return errors.ErrUnsupported }

func (*kernel) leftover(context.Context) (bool, error) { return false, errors.ErrUnsupported }

func (*kernel) clients(*lb.Service, int64) ([]lb.Client, error) { return nil, errors.ErrUnsupported }

func (*kernel) remember(*lb.Service, []lb.Client) error { return errors.ErrUnsupported }

func (*kernel) number(netip.AddrPort) uint32 { return 0 }

func (*kernel) without() map[lb.Name]int { return nil }

func (*kernel) explain(*lb.Service, lb.Address, lb.Node) []string { return nil }

func (*kernel) stats() Stats { return Stats{} }

func cleanup(context.Context) error { return errors.ErrUnsupported }
