package ipvs

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink"

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
	errs := []error{cleanupFamily(ctx, false), cleanupFamily(ctx, true)}
	for _, name := range []string{interfaceName, probeName} {
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkDel(link)
		}
		if err != nil && !missing(err) {
			errs = append(errs, fmt.Errorf("remove interface %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
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
	return err
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
	var errs []error
	var f flows
	near := leadTo(have[setNear])
	for k := range keys {
		backends, err := t.backends(k)
		errs = append(errs, err, t.remove(k))
		for a := range backends {
			f.note([]change{{k, a}}, near)
		}
	}
	return errors.Join(append(errs, f.delete(ipv6))...)
}
