package main

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// claimName is that of an abstract socket (unix(7)), of which each network namespace
// has its own, as it has its own rules. It goes with the process, however that ends.
const claimName = "@sluice.steering"

// claim is the right to steer this network namespace's traffic: a descriptor, which is
// never 0, that of standard input. The zero claim is none.
type claim int

// newClaim takes the right to steer; the error says who has it. Two that steer would
// take each other's rules away, and the one that ends would leave rules that lead nowhere.
func newClaim() (claim, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, fmt.Errorf("open a unix socket: %w", err)
	}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: claimName}); err == nil {
		err = unix.Listen(fd, unix.SOMAXCONN) // so that others can ask who has it
	}
	if err == nil {
		return claim(fd), nil
	}
	_ = unix.Close(fd)
	if !errors.Is(err, unix.EADDRINUSE) {
		return 0, fmt.Errorf("claim the right to steer: %w", err)
	}
	who, trusted := claimHolder()
	if !trusted { // anybody can bind a name, and must not keep us from serving by it
		return 0, nil
	}
	return 0, fmt.Errorf("another Sluice%s steers the traffic of this network namespace: end it first, "+
		"or give both the same --handover-socket, in a folder that both see (for pods, a hostPath), to take over from it", who)
}

// claimHolder finds out who has the claim: the process, if this PID namespace knows it,
// and whether that may steer at all.
func claimHolder() (who string, trusted bool) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return "", true
	}
	defer unix.Close(fd)
	if unix.Connect(fd, &unix.SockaddrUnix{Name: claimName}) != nil {
		return "", true
	}
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return "", true
	}
	if peer.Pid != 0 {
		who = ", process " + strconv.Itoa(int(peer.Pid)) + ","
	}
	return who, peer.Uid == 0 || int(peer.Uid) == unix.Geteuid()
}

// release gives the right back. Releasing what is not held is fine.
func (c *claim) release() {
	if *c > 0 {
		_ = unix.Close(int(*c))
		*c = 0
	}
}
