package testbed

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespace is a network namespace without a name. It is held by an os.File and
// not by a bare number, so that a use after close is an error and never lands in
// whatever the number means by then.
type namespace struct {
	file  *os.File
	addrs []netip.Addr // that were added to its interfaces
}

// currentNamespace returns that of the calling thread, which must be locked.
// /proc/self would be the main thread's.
func currentNamespace() (*namespace, error) {
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	return &namespace{file: f}, nil
}

// ownNamespace returns that of the process, if Reexec has made it.
func ownNamespace() (*namespace, error) {
	if os.Getenv(stageVar) != stageReady {
		return nil, fmt.Errorf("find own namespace: %w: Reexec was not called, or has failed", ErrUnsupported)
	}
	return enteredNamespace()
}

// enteredNamespace returns that of the calling goroutine.
func enteredNamespace() (*namespace, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return currentNamespace()
}

// newNamespace makes an empty one; the calling thread stays where it was.
func newNamespace() (*namespace, error) {
	runtime.LockOSThread()
	home, err := currentNamespace()
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	defer home.close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, os.NewSyscallError("unshare", err)
	}
	ns, err := currentNamespace()
	if back := home.set(); back != nil {
		return nil, errors.Join(err, back) // the thread stays locked, to end with its goroutine
	}
	runtime.UnlockOSThread()
	return ns, err
}

// set moves the calling thread, which must be locked, into the namespace.
func (ns *namespace) set() error {
	return ns.with(func(fd int) error {
		return os.NewSyscallError("setns", unix.Setns(fd, unix.CLONE_NEWNET))
	})
}

// with calls f with the namespace's descriptor, which stays open meanwhile.
func (ns *namespace) with(f func(fd int) error) error {
	raw, err := ns.file.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if raw.Control(func(fd uintptr) { ferr = f(int(fd)) }) != nil {
		return os.ErrClosed // the only cause, under an internal name
	}
	return ferr
}

// enter moves the calling thread, which must be locked, into the namespace; leave
// brings it back to where it was.
func (ns *namespace) enter() (leave func() error, err error) {
	home, err := currentNamespace()
	if err != nil {
		return nil, err
	}
	if err := ns.set(); err != nil {
		home.close()
		return nil, err
	}
	return func() error {
		defer home.close()
		return home.set()
	}, nil
}

func (ns *namespace) close() { ns.file.Close() } // only held for its number: nothing can be lost

// notAllowed reports whether err means that namespaces, or the links in them, are
// refused here: by privilege (EPERM, EACCES), by a read-only /proc/sys (EROFS), by
// a limit in user.max_net_namespaces (ENOSPC), or by the kernel's build.
func notAllowed(err error) bool {
	return errors.Is(err, os.ErrPermission) || errors.Is(err, errors.ErrUnsupported) ||
		errors.Is(err, unix.EROFS) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EAFNOSUPPORT)
}
