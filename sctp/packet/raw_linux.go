package packet

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/socket"
)

// openRaw makes a raw socket for SCTP of one family that receives what comes to
// any address of the host, the index-th of n shares of it. While it is open the
// kernel, which would otherwise know nobody that speaks SCTP, does not answer
// with ICMP that the protocol is unreachable (ip_protocol_deliver_rcu and
// ip6_protocol_deliver_rcu). The caller closes it.
func openRaw(ipv6 bool, index, n, buffer int) (fd int, err error) {
	family := unix.AF_INET
	if ipv6 {
		family = unix.AF_INET6 // which never takes IPv4 packets, and refuses to be told so
	}
	if fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP); err != nil {
		return -1, fmt.Errorf("open raw socket for SCTP: %w", err)
	}
	if err = rawOptions(fd, ipv6, index, n, buffer); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("set up raw socket for SCTP: %w", err)
	}
	return fd, nil
}

func rawOptions(fd int, ipv6 bool, index, n, buffer int) error {
	if n > 1 {
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, share(ipv6, index, n)); err != nil {
			return err
		}
	}
	socket.SetReceiveBuffer(fd, buffer)
	socket.SetSendBuffer(fd, buffer)
	if !ipv6 {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
	}
	return errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1),
	)
}

// shareOf returns which of n shares a packet belongs to. It is the sum of its
// ports, so that we can choose a port of ours that has a backend's packets come
// to the same share as the client's.
func shareOf(source, dest uint16, n int) int { return (int(source) + int(dest)) % n }

// share returns a socket filter that takes the packets of shareOf
// (linux/filter.h). It sees the IP header in IPv4 only. What is too short for ports
// is the first share's, to be counted.
func share(ipv6 bool, index, n int) *unix.SockFprog {
	all := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1}
	none := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}
	short := none
	if index == 0 {
		short = all
	}
	code := []unix.SockFilter{
		{Code: unix.BPF_LDX | unix.BPF_W | unix.BPF_IMM, K: 0},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_LEN},
		{Code: unix.BPF_ALU | unix.BPF_SUB | unix.BPF_X},
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: 4, Jt: 1},
		short,
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: 0}, // source port
		{Code: unix.BPF_ST, K: 0},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: 2}, // destination port
		{Code: unix.BPF_LDX | unix.BPF_W | unix.BPF_MEM, K: 0},
		{Code: unix.BPF_ALU | unix.BPF_ADD | unix.BPF_X},
		{Code: unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K, K: uint32(n)},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(index), Jf: 1},
		all,
		none,
	}
	if !ipv6 {
		code[0] = unix.SockFilter{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH} // length of the IP header
	}
	return &unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
}
