package iptables

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/lb"
)

// recentDir has a file for each list of the match recent that a rule names, for the
// calling thread's network namespace (iptables-extensions(8)). Reading it lists its
// clients; "+" and an address adds one, "-" and an address removes it.
const recentDir = "/proc/thread-self/net/xt_recent"

// list returns the name of the list of a backend's clients.
func list(id lb.ID, backend netip.AddrPort) string { return "SLUICE-" + suffix(id, backend.String()) }

// seen is one line of a list.
type seen struct {
	client netip.Addr
	last   uint64 // jiffies
}

// readList returns a family's clients in a list; none if no rule names it.
func readList(name string, ipv6 bool) ([]seen, error) {
	text, err := os.ReadFile(filepath.Join(recentDir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read list of clients: %w", err)
	}
	all, err := parseList(text)
	if err != nil {
		return nil, fmt.Errorf("read list of clients %s: %w", name, err)
	}
	return slices.DeleteFunc(all, func(s seen) bool { return s.client.Is6() != ipv6 }), nil
}

// parseList reads lines such as "src=192.0.2.1 ttl: 64 last_seen: 4295011534
// oldest_pkt: 2 4295011230, 4295011534" (recent_seq_show in the kernel).
func parseList(text []byte) ([]seen, error) {
	var out []seen
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		w := strings.Fields(lines.Text())
		if len(w) < 5 || !strings.HasPrefix(w[0], "src=") || w[3] != "last_seen:" {
			return nil, fmt.Errorf("unknown line %q", lines.Text())
		}
		client, err := netip.ParseAddr(w[0][len("src="):])
		if err != nil {
			return nil, err
		}
		last, err := strconv.ParseUint(w[4], 10, 64)
		if err != nil {
			return nil, err
		}
		out = append(out, seen{client, last})
	}
	return out, lines.Err()
}

// writeList adds a client to a list or removes it. The kernel takes one with each write.
func writeList(name, sign string, client netip.Addr) error {
	f, err := os.OpenFile(filepath.Join(recentDir, name), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open list of clients: %w", err)
	}
	_, err = f.WriteString(sign + client.String())
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write client %s to list %s: %w", client, name, err)
	}
	return nil
}

// clients reads the lists of a Service's backends.
func (e *Engine) clients(s *lb.Service, now int64) ([]lb.Client, error) {
	type entry struct {
		seen
		backend netip.AddrPort
	}
	var all []entry
	for i := range s.Backends {
		backend := s.Backends[i].Addr
		has, err := readList(list(s.ID, backend), e.IPv6)
		if err != nil {
			return nil, err
		}
		for _, c := range has {
			all = append(all, entry{c, backend})
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	// The time in jiffies is in nothing but a list: the client that it has seen last is
	// added once more.
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.last, b.last) })
	newest := all[len(all)-1]
	name := list(s.ID, newest.backend)
	if err := writeList(name, "+", newest.client); err != nil {
		return nil, err
	}
	again, err := readList(name, e.IPv6)
	if err != nil {
		return nil, err
	}
	present := newest.last
	for _, c := range again {
		present = max(present, c.last)
	}
	tick, err := jiffy()
	if err != nil {
		return nil, err
	}
	var out []lb.Client
	for _, c := range all {
		if age := int64(present-c.last) * int64(tick); age < s.AffinityTimeout {
			out = append(out, lb.Client{Addr: c.client, Backend: c.backend, LastUsed: now - age})
		}
	}
	return out, nil
}

// jiffy returns how long one is: the resolution of the clocks that are counted in them
// (clock_getres(2)).
func jiffy() (time.Duration, error) {
	var res unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &res); err != nil {
		return 0, fmt.Errorf("read the kernel's tick: %w", err)
	}
	return time.Duration(res.Nano()), nil
}

// remember writes clients to the lists of their backends, the longest ago first, so that
// a full list drops those. A client is in one list only: rules match them one after the other.
func (e *Engine) remember(s *lb.Service, clients []lb.Client) error {
	has := make(map[netip.AddrPort]map[netip.Addr]bool)
	for i := range s.Backends {
		backend := s.Backends[i].Addr
		now, err := readList(list(s.ID, backend), e.IPv6)
		if err != nil {
			return err
		}
		has[backend] = make(map[netip.Addr]bool, len(now))
		for _, c := range now {
			has[backend][c.client] = true
		}
	}
	for _, c := range clients {
		if has[c.Backend] == nil || c.Addr.Is6() != e.IPv6 {
			continue
		}
		for backend, clients := range has {
			if backend != c.Backend && clients[c.Addr] {
				if err := writeList(list(s.ID, backend), "-", c.Addr); err != nil {
					return err
				}
			}
		}
		if err := writeList(list(s.ID, c.Backend), "+", c.Addr); err != nil {
			return err
		}
	}
	return nil
}
