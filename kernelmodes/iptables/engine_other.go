//go:build !linux

package iptables

import (
	"context"
	"errors"

	"github.com/sluice-lb/sluice/lb"
)

type kernel struct{}

func (*kernel) probe(context.Context, *Engine) (Facts, error) {
	return Facts{}, errors.ErrUnsupported
}

func (*kernel) sync(context.Context, *Engine, *lb.Delta, lb.Node) error {
	return errors.ErrUnsupported
}

func (*kernel) verify(context.Context, *Engine) (bool, error) { return false, errors.ErrUnsupported }

func (*kernel) clients(*Engine, *lb.Service, int64) ([]lb.Client, error) {
	return nil, errors.ErrUnsupported
}

func (*kernel) remember(*Engine, *lb.Service, []lb.Client) error { return errors.ErrUnsupported }

func cleanup(context.Context) error { return errors.ErrUnsupported }
