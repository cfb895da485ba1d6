package node

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// lockName is that of an abstract socket (unix(7)), of which each network namespace has its
// own, as it has its own rules. It goes with the process, however that ends.
const lockName = "@sluice.steering"

// Lock is the instance lock, held by the one process that steers this network namespace's
// traffic. Its value is a file descriptor, which is never 0. The zero Lock holds nothing.
type Lock int

// NewLock takes the lock; the error says which process has it. Two that steer would remove
// each other's rules, and the one that ends would leave rules that lead nowhere.
func NewLock() (Lock, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, fmt.Errorf("open a unix socket: %w", err)
	}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: lockName}); err == nil {
		err = unix.Listen(fd, unix.SOMAXCONN) // so that other processes can ask for its owner
	}
	if err == nil {
		return Lock(fd), nil
	}
	_ = unix.Close(fd)
	if !errors.Is(err, unix.EADDRINUSE) {
		return 0, fmt.Errorf("take the instance lock: %w", err)
	}
	holder, trusted, err := lockHolder()
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return 0, errEnding
	case !trusted: // any user can bind a name, which must not keep us from serving
		return 0, nil
	}
	return 0, &HeldError{holder}
}

// lockHolder returns the process that holds the lock, if this PID namespace knows it, and
// whether its user may steer at all. One that cannot be asked may.
func lockHolder() (holder string, trusted bool, err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return "", true, err
	}
	defer unix.Close(fd)
	if err = unix.Connect(fd, &unix.SockaddrUnix{Name: lockName}); err != nil {
		return "", true, err
	}
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return "", true, err
	}
	if peer.Pid != 0 {
		holder = ", process " + strconv.Itoa(int(peer.Pid)) + ","
	}
	return holder, peer.Uid == 0 || int(peer.Uid) == unix.Geteuid(), nil
}

// Ending has other processes wait for the lock, which is given back soon: the socket refuses them, and keeps its name.
func (l Lock) Ending() {
	if l > 0 {
		_ = unix.Shutdown(int(l), unix.SHUT_RDWR) // at worst they wait no longer than for others
	}
}

// Release gives the lock back. Releasing the zero Lock is fine.
func (l *Lock) Release() {
	if *l > 0 {
		_ = unix.Close(int(*l))
		*l = 0
	}
}
