package ipvs

import (
	"bufio"
	"cmp"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/lb"
)

// connections lists connections and templates, for the calling thread's network namespace.
// Netlink has no message for it.
const connections = "/proc/thread-self/net/ip_vs_conn"

// clients reads the templates of persistence of a Service's virtual servers.
func (e *Engine) clients(s *lb.Service, now int64) ([]lb.Client, error) {
	f, err := os.Open(connections)
	if err != nil {
		return nil, fmt.Errorf("read connections of ipvs: %w", err)
	}
	defer f.Close()
	out, err := templates(f, s, now)
	if err != nil {
		return nil, fmt.Errorf("read connections of ipvs: %w", err)
	}
	return out, nil
}

// templates reads lines such as
//
//	TCP C0000201 0000 0A600050 0050 0AF4010A 1F90 NONE        10795
//
// (ip_vs_conn_seq_show in the kernel): protocol, client, virtual server, real server,
// each with its port and all in hexadecimal, then the state and in how many seconds it
// expires. A template, which remembers a client and is no connection, has port 0 of the
// client.
func templates(r io.Reader, s *lb.Service, now int64) ([]lb.Client, error) {
	ours := make(map[netip.AddrPort]bool, len(s.Addresses))
	anywhere := make(map[uint16]bool) // node ports
	for _, a := range s.Addresses {
		if a.Addr.Addr().IsUnspecified() {
			anywhere[a.Addr.Port()] = true
		}
		ours[a.Addr] = true
	}
	var out []lb.Client
	lines := bufio.NewScanner(r)
	lines.Scan() // the heading
	for lines.Scan() {
		w := strings.Fields(lines.Text())
		if len(w) < 9 {
			return nil, fmt.Errorf("unknown line %q", lines.Text())
		}
		if w[0] != s.Protocol.String() || w[2] != "0000" {
			continue
		}
		var at [3]netip.AddrPort // client, virtual server, real server
		for i := range at {
			var err error
			if at[i], err = hexadecimal(w[1+2*i], w[2+2*i]); err != nil {
				return nil, err
			}
		}
		if at[0].Addr().Is6() != s.IPv6 || !ours[at[1]] && !anywhere[at[1].Port()] {
			continue
		}
		left, err := strconv.ParseInt(w[8], 10, 64)
		if err != nil {
			return nil, err
		}
		age := max(0, s.AffinityTimeout-left*int64(time.Second))
		out = append(out, lb.Client{Addr: at[0].Addr(), Backend: at[2], LastUsed: now - age})
	}
	slices.SortStableFunc(out, func(a, b lb.Client) int { return cmp.Compare(a.LastUsed, b.LastUsed) })
	return out, lines.Err()
}

// hexadecimal reads an address and a port. IPv4 is one number, IPv6 has its colons.
func hexadecimal(ip, port string) (netip.AddrPort, error) {
	if p, err := strconv.ParseUint(port, 16, 16); err != nil {
		return netip.AddrPort{}, err
	} else if strings.Contains(ip, ":") {
		addr, err := netip.ParseAddr(ip)
		return netip.AddrPortFrom(addr, uint16(p)), err
	} else if b, err := hex.DecodeString(ip); err == nil && len(b) == 4 {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b)), uint16(p)), nil
	}
	return netip.AddrPort{}, fmt.Errorf("unknown address %q", ip)
}
