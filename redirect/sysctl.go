package redirect

import "time"

// Conntrack is the size and the timeouts of the kernel's table of connections,
// which steered packets need to be in, with kube-proxy's names and meanings
// (--conntrack-*). The zero value changes nothing.
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

	// BeLiberal has packets that are out of the TCP window not be called invalid
	// (nf_conntrack_tcp_be_liberal). False leaves it as it is.
	BeLiberal bool
}

// Apply writes what differs from what the kernel has, in the network namespace of
// the calling thread, and has the table's hash grow to a bucket for every four
// entries if it is smaller.
//
// It goes on after an error and returns all of them. What kube-proxy goes on
// without is not an error but a warning, a sentence for the administrator: a hash
// that cannot grow, since /sys is mounted read-only as in many containers, only makes
// lookups slower. On other systems than Linux the error is
// errors.ErrUnsupported.
func (c Conntrack) Apply() (warnings []string, err error) { return c.apply() }

// TellApart has the kernel tell two connections apart that a client has from one port of its
// own to two frontends of TCP, both of which are steered to one port of the proxy. netfilter
// gives the second one another source port, but before that, in the first
// lookup of a socket for a packet that has come in, kernels before Linux 6.6 have
// found the first one's, and the second one hangs until the client gives up. They are told
// not to look so early (net.ipv4.tcp_early_demux, which is for IPv6 too), in the network namespace of the
// calling thread; it saved a search for a route for packets of connections that end at this
// host. Newer kernels are left as they are. On other systems than Linux the error is
// errors.ErrUnsupported.
func TellApart() error { return tellApart() }
