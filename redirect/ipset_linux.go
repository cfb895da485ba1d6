package redirect

import (
	"context"
	"errors"

	"github.com/sluice-lb/sluice/internal/netfilter"
)

// kernelSet returns the set of a name without its prefix.
func (s shape) kernelSet(name string) netfilter.Set {
	return netfilter.Set{Name: s.set(name), Type: setType(name), IPv6: s.ipv6}
}

// createSets makes all sets that are not there.
func (s shape) createSets() error {
	for _, name := range setOrder {
		if err := s.kernelSet(name).Create(); err != nil {
			return err
		}
	}
	return nil
}

// readSets returns what is really in all sets.
func (s shape) readSets() (sets, error) {
	all := make(sets, len(setOrder))
	for _, name := range setOrder {
		m, err := s.kernelSet(name).Read()
		if err != nil {
			return nil, err
		}
		all[name] = m
	}
	return all, nil
}

// destroySets removes all sets. Sets that are not there, and a kernel without
// sets, are no error.
func (s shape) destroySets(ctx context.Context) error {
	var errs []error
	for _, name := range setOrder {
		errs = append(errs, s.kernelSet(name).Destroy(ctx))
	}
	return errors.Join(errs...)
}
