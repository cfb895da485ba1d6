package netfilter

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"

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

// EachFamily calls f for both address families, if we may change netfilter.
func EachFamily(f func(ipv6 bool) error) error {
	if err := Privileged(); err != nil {
		return err
	}
	return errors.Join(f(false), f(true))
}

// Program returns the name of a family's iptables of the host's own choice.
func Program(ipv6 bool) string {
	if ipv6 {
		return "ip6tables"
	}
	return "iptables"
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

// Reject is the target that refuses packets in the way that their protocol's clients
// understand at once.
func Reject(tcp, ipv6 bool) string {
	switch {
	case tcp:
		return "REJECT --reject-with tcp-reset"
	case ipv6:
		return "REJECT --reject-with icmp6-port-unreachable"
	}
	return "REJECT --reject-with icmp-port-unreachable"
}
