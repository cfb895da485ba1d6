package netfilter

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"syscall"

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

// Backends returns the iptables programs that are installed, one per backend.
func Backends(ipv6 bool) []string {
	family := "iptables"
	if ipv6 {
		family = "ip6tables"
	}
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

// NoSubsystem reports whether nfnetlink does not know what was spoken to: its
// module is not there (nfnetlink_rcv_msg in the kernel's nfnetlink.c).
func NoSubsystem(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EPROTONOSUPPORT)
}
