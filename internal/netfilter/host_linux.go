package netfilter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// Privileged says what to do if we lack what everything here needs. Netfilter's
// netlink refuses every request without CAP_NET_ADMIN (nfnetlink_rcv in the
// kernel), even to look, while what iptables says depends on version and
// backend.
func Privileged() error {
	if _, err := nftTables(unix.NFPROTO_IPV4); errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("change netfilter: %w: %s", fs.ErrPermission, needed)
	}
	return nil
}

// Program returns the name of a family's iptables of the host's own choice.
func Program(ipv6 bool) string {
	if ipv6 {
		return "ip6tables"
	}
	return "iptables"
}

// Find looks for a program of iptables, says what to do if it is not there or may not
// write rules, and returns its path and version, like "v1.8.9 (nf_tables)". nft says
// that its backend is nf_tables.
func Find(ctx context.Context, command string) (path, version string, nft bool, err error) {
	if err := Privileged(); err != nil {
		return "", "", false, err
	}
	if path, err = exec.LookPath(command); err != nil {
		return "", "", false, fmt.Errorf("find %s: %w: install iptables 1.8 or later", command, err)
	}
	out, err := Run(ctx, nil, path, "-V")
	if err != nil {
		return "", "", false, err
	}
	_, version, _ = strings.Cut(strings.TrimSpace(string(out)), " ")
	return path, version, strings.Contains(version, "nf_tables"), nil
}

// Backends returns the iptables programs that are installed, one per backend.
func Backends(ipv6 bool) []string {
	family := Program(ipv6)
	var out []string
	for _, name := range []string{family + "-nft", family + "-legacy"} {
		if _, err := exec.LookPath(name); err == nil {
			out = append(out, name)
		}
	}
	if len(out) == 0 {
		return []string{family} // from before 1.8 there is one backend and one name
	}
	return out
}
