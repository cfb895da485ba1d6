//go:build !linux

package netfilter

import "errors"

func (*Lease) renew() error { return errors.ErrUnsupported }
