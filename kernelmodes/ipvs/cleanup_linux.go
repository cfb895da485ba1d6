package ipvs

import (
	"context"
	"errors"
	"syscall"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// members reads a set of an earlier process of this family, and reports whether it is there:
// each process begins with making the sets.
func (s shape) members(name string) (list []netfilter.Member, there bool, err error) {
	list, err = s.set(name).Read()
	if errors.Is(err, syscall.ENOENT) || nfnl.NoSubsystem(err) {
		return nil, false, nil
	}
	return list, err == nil, err
}

func cleanup(ctx context.Context) error {
	if err := netfilter.Privileged(); err != nil {
		return err
	}
	return errors.Join(cleanupFamily(ctx, false), cleanupFamily(ctx, true))
}

// cleanupFamily removes virtual servers first: the sets name them.
func cleanupFamily(ctx context.Context, ipv6 bool) error {
	err := removeServers(ipv6)
	for _, prefix := range []string{chainPrefix, probePrefix} {
		l := shape{ipv6: ipv6, prefix: prefix}.layout()
		if err != nil {
			l.Sets, l.Inner = nil, nil // they are needed to try again
		}
		err = errors.Join(err, netfilter.Remove(ctx, l, nil))
	}
	here, err2 := routed(ipv6)
	errs := []error{err, err2}
	for _, ip := range here {
		errs = append(errs, deleteRoute(ip))
	}
	return errors.Join(errs...)
}

// removeServers removes the virtual servers that our sets name.
func removeServers(ipv6 bool) error {
	s := shape{ipv6: ipv6, prefix: chainPrefix}
	servers, _, err1 := s.members(setServers)
	numbers, _, err2 := s.members(setNumbers)
	near, _, err3 := s.members(setNear)
	ours := ourKeys(servers, numbers)
	if err := errors.Join(err1, err2, err3); err != nil || len(ours) == 0 {
		return err
	}
	t, err := open(ipv6, new(uint64))
	if err != nil {
		return err
	}
	defer t.Close()
	f := flows{leads: leadTo(near)}
	have, err := t.read(func(x key) bool { return ours[x] })
	for x, h := range have {
		t.remove(x, func() {
			for a := range h.weights {
				f.note(x, a)
			}
		})
	}
	return errors.Join(err, t.flush(), f.delete(ipv6))
}
