package api

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/node"
)

// ErrTaken means that another process serves its API at the path.
var ErrTaken = errors.New("another running process serves its API there")

// Listen makes the socket at path, of mode 0600. Its folder is made if it does not exist; no other user may be able to
// write to it. What is there is replaced, but for the socket of a process that answers, unless takeOver says that this
// process has taken over from it. Connections of other users than root and our own are closed.
func Listen(path string, takeOver bool) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := node.Private(dir); err != nil {
		return nil, err
	}
	if err := free(path, takeOver); err != nil {
		return nil, err
	}
	aside := fmt.Sprintf("%s.%d", path, os.Getpid())
	_ = os.Remove(aside) // of a process that has crashed and had our id
	inner, err := net.ListenUnix("unix", &net.UnixAddr{Name: aside, Net: "unix"})
	if err != nil {
		return nil, err
	}
	inner.SetUnlinkOnClose(false)
	l := &listener{UnixListener: inner, path: path}
	if err = os.Chmod(aside, 0o600); err == nil {
		l.ino, err = inode(aside)
	}
	if err == nil {
		err = os.Rename(aside, path)
	}
	if err != nil {
		_ = os.Remove(aside)
		_ = inner.Close()
		return nil, err
	}
	return l, nil
}

// free reports why path is not to be replaced; nil: it is, or there is nothing.
func free(path string, takeOver bool) error {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("%s is there and is no socket: give --api-socket another path", path)
	}
	c, err := net.Dial("unix", path)
	switch {
	case err == nil:
		_ = c.Close()
		if !takeOver {
			return fmt.Errorf("%s: %w", path, ErrTaken)
		}
	case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED): // of another kind, or much asked
		return fmt.Errorf("look who answers: %w", err)
	}
	return nil
}

func inode(path string) (uint64, error) {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	return st.Ino, err
}

// listener accepts connections of users that are trusted.
type listener struct {
	*net.UnixListener
	path   string
	ino    uint64
	closed sync.Once
}

// Accept waits for a connection of root or our own user: the socket's mode and folder keep others away, too, unless
// they have been given the socket.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if cred := credentials(c); cred != nil && (cred.Uid == 0 || int(cred.Uid) == os.Geteuid()) {
			return &peer{c, *cred}, nil
		}
		_ = c.Close()
	}
}

// peer is a connection of a process that is known.
type peer struct {
	*net.UnixConn
	cred unix.Ucred
}

// RemoteAddr says which process it is, for http.Request.RemoteAddr.
func (p *peer) RemoteAddr() net.Addr {
	return &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("uid %d, pid %d", p.cred.Uid, p.cred.Pid)}
}

// credentials are those of the process at the other end; nil: they cannot be had.
func credentials(c *net.UnixConn) (cred *unix.Ucred) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	controlErr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if controlErr != nil || err != nil {
		return nil
	}
	return cred
}

// Close stops listening, and removes the socket's file, unless another process has put its own in its place.
func (l *listener) Close() error {
	l.closed.Do(func() {
		if ino, err := inode(l.path); err == nil && ino == l.ino {
			_ = os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}
