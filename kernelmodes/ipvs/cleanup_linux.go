package ipvs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/sluice-lb/sluice/internal/netfilter"
)

// anything reports whether there is something of an earlier process of this family:
// each begins with our sets.
func (s shape) anything() (bool, error) {
	_, err := s.set(setServers).Read()
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, syscall.ENOENT), netfilter.NoSubsystem(err):
		return false, nil
	}
	return false, err
}

// sets returns all sets, each once.
func (s shape) sets() map[netfilter.Set]bool {
	out := make(map[netfilter.Set]bool, len(setOrder))
	for _, name := range setOrder {
		out[s.set(name)] = true
	}
	return out
}

func (s shape) destroySets(ctx context.Context) error {
	var errs []error
	for set := range s.sets() {
		errs = append(errs, set.Destroy(ctx))
	}
	return errors.Join(errs...)
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
	errs := []error{removeServers(ipv6), netfilter.Unseen(ipv6)}
	for _, command := range netfilter.Backends(ipv6) {
		save, err := netfilter.SavedBy(ctx, command+"-save")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if script := netfilter.Undo(save, removable); len(script) > 0 {
			errs = append(errs, netfilter.Restore(ctx, command+"-restore", false, ipv6, script))
		}
	}
	for _, t := range tables {
		errs = append(errs, netfilter.RemoveMarkedTable(netfilter.Family(ipv6), t.name))
	}
	if errors.Join(errs...) != nil {
		return errors.Join(errs...) // the sets are needed to try again
	}
	for _, prefix := range []string{chainPrefix, probePrefix} {
		errs = append(errs, shape{ipv6: ipv6, prefix: prefix}.destroySets(ctx))
	}
	return errors.Join(errs...)
}

func removable(_, chain string) bool {
	return strings.HasPrefix(chain, chainPrefix) || strings.HasPrefix(chain, probePrefix)
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
	if len(have[setServers])+len(have[setNumbers]) == 0 {
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
	for k := range ourKeys(have) {
		backends, err := t.backends(k)
		errs = append(errs, err, t.remove(k))
		for a := range backends {
			f.note([]change{{k, a}}, near)
		}
	}
	return errors.Join(append(errs, f.delete(ipv6))...)
}
