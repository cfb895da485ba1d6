package packet

import "golang.org/x/sys/unix"

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
