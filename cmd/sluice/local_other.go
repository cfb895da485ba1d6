//go:build !linux

package main

import "errors"

// addressNotice is not built for this system.
type addressNotice struct{}

func noticeAddresses() (*addressNotice, error) { return nil, errors.ErrUnsupported }

func (*addressNotice) changed() bool { return true }

func (*addressNotice) close() error { return nil }
