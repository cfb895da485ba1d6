//go:build !linux

package redirect

import "errors"

func (Conntrack) apply() ([]string, error) { return nil, errors.ErrUnsupported }

func tellApart() error { return errors.ErrUnsupported }
