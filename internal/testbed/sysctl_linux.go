package testbed

import (
	"os"
	"syscall"
)

// role decides whether a host forwards.
type role int

const (
	endSystem role = iota
	forwarder
)

// setting is one sysctl, with its values for each role.
type setting struct{ key, endSystem, forwarder string }

// settings are written before a host has interfaces, so that "default" reaches
// all of them. IPv4's are set even where they are the kernel's defaults, since a
// new namespace copies those of the machine's own
// (net.core.devconf_inherit_init_net).
var settings = []setting{
	{"net.ipv4.ip_forward", "0", "1"},
	{"net.ipv6.conf.all.forwarding", "0", "1"},
	{"net.ipv6.conf.default.forwarding", "0", "1"},
	// Loose, as systemd sets it on most nodes: a packet's source must be routable,
	// by any interface. The larger of "all" and the interface's value counts.
	{"net.ipv4.conf.all.rp_filter", "2", "2"},
	{"net.ipv4.conf.default.rp_filter", "0", "0"},
	{"net.ipv4.conf.all.route_localnet", "0", "0"},
	{"net.ipv4.conf.default.route_localnet", "0", "0"},
	{"net.ipv4.conf.all.accept_local", "0", "0"},
	{"net.ipv4.conf.default.accept_local", "0", "0"},
	// The node forwards what it does not take out of the interface it came in by.
	// A redirect would teach clients to go to the router instead, for good.
	{"net.ipv4.conf.all.send_redirects", "0", "0"},
	{"net.ipv4.conf.default.send_redirects", "0", "0"},
	{"net.ipv4.conf.all.accept_redirects", "0", "0"},
	{"net.ipv4.conf.default.accept_redirects", "0", "0"},
	{"net.ipv6.conf.all.accept_redirects", "0", "0"},
	{"net.ipv6.conf.default.accept_redirects", "0", "0"},
	// Addresses work at once and no other addresses appear.
	{"net.ipv6.conf.all.disable_ipv6", "0", "0"},
	{"net.ipv6.conf.default.disable_ipv6", "0", "0"},
	{"net.ipv6.conf.all.accept_dad", "0", "0"},
	{"net.ipv6.conf.default.accept_dad", "0", "0"},
	{"net.ipv6.conf.all.accept_ra", "0", "0"},
	{"net.ipv6.conf.default.accept_ra", "0", "0"},
	// 1 s between ICMP errors to one host, and 50 at once to all, would make
	// "refused" a matter of luck: the masks say which types are limited.
	{"net.ipv4.icmp_ratemask", "0", "0"},
	{"net.ipv6.icmp.ratemask", "\n", "\n"},
	// A host that closes first must not run out of ports: reuse those in TIME-WAIT
	// after 1 s (the default, 2, does so on loopback only).
	{"net.ipv4.tcp_tw_reuse", "1", "1"},
}

// prepare brings lo up and writes the settings.
func (h *Host) prepare(r role) error {
	// A kernel without IPv6 lacks its sysctls: say that, not "no such file".
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		return &os.PathError{Op: "use", Path: "/proc/sys/net/ipv6", Err: syscall.EAFNOSUPPORT}
	}
	for _, s := range settings {
		value := s.endSystem
		if r == forwarder {
			value = s.forwarder
		}
		if err := h.Sysctl(s.key, value); err != nil {
			return err
		}
	}
	return h.setUp("lo")
}
