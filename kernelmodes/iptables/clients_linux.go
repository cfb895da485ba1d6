package iptables

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/kernelmodes"
	"github.com/sluice-lb/sluice/lb"
)

// recentDir has a file for each list of the match recent that a rule names, for the
// calling thread's network namespace (iptables-extensions(8)). Reading it lists its
// clients; "+" and an address adds one, "-" and an address removes it.
const recentDir = "/proc/thread-self/net/xt_recent"

// list returns the name of the list of a backend's clients.
func list(id lb.ID, backend netip.AddrPort) string {
	return "SLUICE-" + kernelmodes.Suffix(id, backend.String())
}

// readList returns the clients of a backend; none if no rule names its list. LastUsed is in
// jiffies.
func readList(id lb.ID, backend netip.AddrPort) ([]lb.Client, error) {
	text, err := os.ReadFile(filepath.Join(recentDir, list(id, backend)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var clients []lb.Client
	if err == nil {
		clients, err = parseList(text, backend)
	}
	if err != nil {
		return nil, fmt.Errorf("read list of clients of %s: %w", backend, err)
	}
	return clients, nil
}

// parseList reads lines such as "src=192.0.2.1 ttl: 64 last_seen: 4295011534
// oldest_pkt: 2 4295011230, 4295011534" (recent_seq_show in the kernel).
func parseList(text []byte, backend netip.AddrPort) (out []lb.Client, err error) {
	for line := range strings.Lines(string(text)) {
		var addr string
		var ttl int
		c := lb.Client{Backend: backend}
		if _, err := fmt.Sscanf(line, "src=%s ttl: %d last_seen: %d", &addr, &ttl, &c.LastUsed); err != nil {
			return nil, fmt.Errorf("unknown line %q: %w", line, err)
		}
		if c.Addr, err = netip.ParseAddr(addr); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// readLists returns the clients of all backends of a Service.
func readLists(s *lb.Service) (all []lb.Client, err error) {
	for i := range s.Backends {
		clients, err := readList(s.ID, s.Backends[i].Addr)
		if err != nil {
			return nil, err
		}
		all = append(all, clients...)
	}
	return all, nil
}

// writeList adds a client to the list of its backend or removes it. The kernel takes one with
// each write.
func writeList(id lb.ID, sign string, c lb.Client) error {
	file := filepath.Join(recentDir, list(id, c.Backend))
	if err := os.WriteFile(file, []byte(sign+c.Addr.String()), 0o644); err != nil {
		return fmt.Errorf("write client %s to the list of %s: %w", c.Addr, c.Backend, err)
	}
	return nil
}

// clients reads the lists of a Service's backends.
func clients(s *lb.Service, now int64) ([]lb.Client, error) {
	all, err := readLists(s)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	// The time in jiffies is in nothing but a list: the client that it has seen last is
	// added once more.
	slices.SortFunc(all, func(a, b lb.Client) int { return cmp.Compare(a.LastUsed, b.LastUsed) })
	newest := all[len(all)-1]
	if err := writeList(s.ID, "+", newest); err != nil {
		return nil, err
	}
	again, err := readList(s.ID, newest.Backend)
	if err != nil {
		return nil, err
	}
	present := newest.LastUsed
	for _, c := range again {
		present = max(present, c.LastUsed)
	}
	// A jiffy is the resolution of the clocks that are counted in them (clock_getres(2)).
	var jiffy unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &jiffy); err != nil {
		return nil, fmt.Errorf("read the kernel's tick: %w", err)
	}
	var out []lb.Client
	for _, c := range all {
		if age := (present - c.LastUsed) * jiffy.Nano(); age < s.AffinityTimeout {
			c.LastUsed = now - age
			out = append(out, c)
		}
	}
	return out, nil
}

// remember writes clients to the lists of their backends, the longest ago first, so that
// a full list drops those. A client is in one list only: rules match them one after the other.
func remember(s *lb.Service, clients []lb.Client) error {
	all, err := readLists(s)
	if err != nil {
		return err
	}
	known := make(map[netip.Addr][]lb.Client)
	for _, c := range all {
		known[c.Addr] = append(known[c.Addr], c)
	}
	backends := make(map[netip.AddrPort]bool, len(s.Backends))
	for i := range s.Backends {
		backends[s.Backends[i].Addr] = true
	}
	for _, c := range clients {
		if !backends[c.Backend] || c.Addr.Is6() != s.IPv6 {
			continue
		}
		for _, was := range known[c.Addr] {
			if was.Backend != c.Backend {
				if err := writeList(s.ID, "-", was); err != nil {
					return err
				}
			}
		}
		if err := writeList(s.ID, "+", c); err != nil {
			return err
		}
	}
	return nil
}
