//go:build !linux

package ipvs

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-lb/sluice/lb"
)

var errOther = fmt.Errorf("ipvs: %w: it is part of Linux", errors.ErrUnsupported)

type kernel struct{}

func (*Engine) probe(context.Context) (Facts, error) { return Facts{}, errOther }

func (*Engine) sync(context.Context, *lb.Delta, lb.Node) error { return errOther }

func (*Engine) verify(context.Context) (bool, error) { return false, errOther }

func (*Engine) clients(*lb.Service, int64) ([]lb.Client, error) { return nil, errOther }

func (*Engine) fallbacks() []Fallback { return nil }

func (*Engine) stats() Stats { return Stats{} }

func present(context.Context) error { return errOther }

func cleanup(context.Context) error { return errOther }
