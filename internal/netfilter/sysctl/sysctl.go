package sysctl

import "time"

// Conntrack are the size and the timeouts of the kernel's table of connections, with
// kube-proxy's names and meanings (--conntrack-*). The zero value changes nothing.
type Conntrack struct {
	// MaxPerCore times the number of CPUs that are online is the most entries
	// that the table takes (net.netfilter.nf_conntrack_max), but not more than
	// 1,048,576 and not less than Min. 0 leaves the kernel's limit as it is.
	MaxPerCore, Min int32

	// How long an entry lives without a packet, in whole seconds, rounded up;
	// 0 leaves it as it is.
	TCPEstablished time.Duration // nf_conntrack_tcp_timeout_established
	TCPCloseWait   time.Duration // nf_conntrack_tcp_timeout_close_wait
	UDP            time.Duration // nf_conntrack_udp_timeout: no answer yet
	UDPStream      time.Duration // nf_conntrack_udp_timeout_stream: answered

	// BeLiberal sets nf_conntrack_tcp_be_liberal: packets out of the TCP window are
	// not invalid. False leaves it as it is.
	BeLiberal bool

	// Accounting sets nf_conntrack_acct and nf_conntrack_timestamp: the kernel counts packets
	// and bytes of entries that are made from now on, and notes when they were made and end.
	// False leaves both as they are.
	Accounting bool
}

// Apply writes what differs from what the kernel has, in the network namespace of
// the calling thread, and makes the table's hash grow to a bucket for every four
// entries if it is smaller.
//
// It goes on after an error and returns all of them. A hash that cannot grow, since /sys
// is mounted read-only as in many containers, is not an error but a warning, a sentence
// for the administrator: lookups are slower. On other systems than Linux the error is
// errors.ErrUnsupported.
func (c Conntrack) Apply() (warnings []string, err error) { return c.apply() }

// DisableEarlyDemux sets net.ipv4.tcp_early_demux, which is for IPv6 too, to 0 on kernels
// before Linux 6.6. There it breaks two connections that a client has from one port of its
// own to two frontends which are redirected to one proxy port: netfilter gives the second
// one another source port, but early demux has found the first one's socket before that,
// and the second connection hangs until the client gives up. Early demux saves a route
// lookup for packets of connections that end at this host. On other systems than Linux the
// error is errors.ErrUnsupported.
func DisableEarlyDemux() error { return disableEarlyDemux() }

// ReuseTimeWait sets net.ipv4.tcp_tw_reuse, which is for IPv6 too, to 1. Where the clients end their connections first,
// the proxy's sockets towards the backend go to TIME_WAIT, for 60 s: without the setting 28,232 ports
// (ip_local_port_range, ip(7)) last for 470 connections a second to one backend, and connect(2) takes ever longer
// to find one from half of that. With it a port is used again after a second, which timestamps make safe (RFC 6191;
// tcp(7); where a side has none it is not used again). On other systems than Linux it does nothing.
func ReuseTimeWait() error { return reuseTimeWait() }

// Usage returns how many entries the table has in the network namespace of the calling thread, and how many it may have
// there. The error is fs.ErrNotExist where the kernel has no table, and errors.ErrUnsupported on other systems than
// Linux.
func Usage() (entries, limit int, err error) { return usage() }
