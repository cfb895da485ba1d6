package ipvs

import (
	"context"
	"errors"
	"syscall"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// anything reports whether there is something of an earlier process of this family:
// each begins with our sets.
func (s shape) anything() (bool, error) {
	_, err := s.set(setServers).Read()
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, syscall.ENOENT), nfnl.NoSubsystem(err):
		return false, nil
	}
	return false, err
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
		errs = append(errs, deleteAddress(ip))
	}
	return errors.Join(errs...)
}

// removeServers removes the virtual servers that our sets name.
func removeServers(ipv6 bool) error {
	s := shape{ipv6: ipv6, prefix: chainPrefix}
	if there, err := s.anything(); err != nil || !there {
		return err
	}
	have := make(map[string][]netfilter.Member)
	for _, name := range []string{setServers, setNumbers, setNear} {
		list, err := s.set(name).Read()
		if err != nil && !errors.Is(err, syscall.ENOENT) {
			return err
		}
		have[name] = list
	}
	keys := ourKeys(have[setServers], have[setNumbers])
	if len(keys) == 0 {
		return nil
	}
	t, err := open(ipv6, new(uint64))
	if err != nil {
		return err
	}
	defer t.Close()
	f := flows{leads: leadTo(have[setNear])}
	servers, err := t.read(func(x key) bool { return keys[x] })
	for x, h := range servers {
		t.remove(x, func() {
			for a := range h.weights {
				f.note(x, a)
			}
		})
	}
	return errors.Join(err, t.flush(), f.delete(ipv6))
}
