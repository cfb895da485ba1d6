//go:build !linux

package iptables

import (
	"context"
	"errors"

	"github.com/sluice-lb/sluice/lb"
)

type kernel struct{}

func (*Engine) probe(context.Context) (Facts, error) { return Facts{}, errors.ErrUnsupported }

func (*Engine) sync(context.Context, *lb.Delta, lb.Node) error { return errors.ErrUnsupported }

func (*Engine) verify(context.Context) (bool, error) { return false, errors.ErrUnsupported }

func (*Engine) clients(*lb.Service, int64) ([]lb.Client, error) { return nil, errors.ErrUnsupported }

func (*Engine) remember(*lb.Service, []lb.Client) error { return errors.ErrUnsupported }

func (*Engine) stats() Stats { return Stats{} }

func cleanup(context.Context) error { return errors.ErrUnsupported }
