//go:build !linux

package sysctl

import "errors"

func (Conntrack) apply() ([]string, error) { return nil, errors.ErrUnsupported }

func usage() (entries, limit int, err error) { return 0, 0, errors.ErrUnsupported }

func disableEarlyDemux() error { return errors.ErrUnsupported }

func reuseTimeWait() error { return nil }
