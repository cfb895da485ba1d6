package handover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/node"
)

// networkNamespace names the network namespace that we are in (namespaces(7)).
func networkNamespace() (string, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &st); err != nil {
		return "", fmt.Errorf("look at the network namespace: %w", err)
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino), nil
}

// Socket is where a running process accepts requests to hand over.
type Socket struct {
	path string
	file *os.File // listens
	ino  uint64
}

// NewSocket makes a socket for Listen, in time: the process may have no file descriptor left when it comes to listen.
func NewSocket() (fd int, err error) {
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("make a Unix socket: %w", withRemedy(err))
	}
	return fd, nil
}

// Listen makes the socket at path, in place of one that is there: of a process that has
// ended, or that we have taken over from. Its directory is made if it does not exist;
// no other user may be able to write to it. It owns fd, of NewSocket, and needs no other
// file descriptor.
func Listen(fd int, path string) (*Socket, error) {
	s, err := listen(fd, path)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("listen for a successor at %s: %w%s", path, err, socketRemedy(err, path))
	}
	return s, nil
}

// maxSocketPath is the longest name of a socket, in bytes (unix(7)).
const maxSocketPath = 107

// socketRemedy says what is to be done about an error of listen that is about the place.
func socketRemedy(err error, path string) string {
	dir := filepath.Dir(path)
	switch {
	case errors.Is(err, unix.EROFS):
		return fmt.Sprintf(": directory %s is on a read-only file system: give --handover-socket a file on one "+
			"that can be written (for a pod: on a hostPath volume without readOnly)", dir)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Sprintf(": Sluice, as user %d, may not write to directory %s: give --handover-socket a file in "+
			"one of its own, of mode 0700", os.Geteuid(), dir)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Sprintf(": make room on the file system of directory %s, or give --handover-socket a file on "+
			"another", dir)
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Sprintf(": %s is to be a directory: give --handover-socket a file in one", dir)
	case errors.Is(err, unix.EINVAL) && len(path)+len(".4194304") > maxSocketPath:
		return fmt.Sprintf(": a socket's name has at most %d bytes, that of the process included: give "+
			"--handover-socket a shorter one", maxSocketPath)
	}
	return ""
}

func listen(fd int, path string) (*Socket, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := node.Private(dir); err != nil {
		return nil, err
	}
	tmp := fmt.Sprintf("%s.%d", path, os.Getpid())
	_ = os.Remove(tmp)
	var st unix.Stat_t
	err := unix.Bind(fd, &unix.SockaddrUnix{Name: tmp})
	if err == nil {
		err = errors.Join(os.Chmod(tmp, 0o600), unix.Listen(fd, 16), unix.Stat(tmp, &st))
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return nil, err
	}
	return &Socket{path: path, file: os.NewFile(uintptr(fd), path), ino: st.Ino}, nil
}

// Close ends the connections that have not been accepted. The file stays.
func (s *Socket) Close() { _ = s.file.Close() }

// Remove removes the socket's file, unless another process has put its own in its
// place. The socket itself stays until Close.
func (s *Socket) Remove() {
	var st unix.Stat_t
	if unix.Stat(s.path, &st) == nil && st.Ino == s.ino {
		_ = os.Remove(s.path)
	}
}

// ErrBroken means that the socket accepts no connection any more.
var ErrBroken = errors.New("the handover socket is broken")

// acceptRetry is how long Accept waits while the process has no file descriptor left, whose return no event reports.
const acceptRetry = 100 * time.Millisecond

// Accept waits for a connection. Those of other users are closed and reported as an error,
// after which Accept may be called again; ErrBroken and the end of ctx are final.
//
// It waits in Go's poller. A thread that looked for the end of ctx every 20 ms kept Go's monitor awake, which then cost
// a tenth of the processor time of a busy process (sysmon of Go 1.26 sleeps 20 us at a time after each system call
// that lasts).
func (s *Socket) Accept(ctx context.Context) (*Channel, error) {
	stop := context.AfterFunc(ctx, func() { _ = s.file.SetReadDeadline(time.Now()) })
	defer stop()
	for {
		fd, err := s.accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = unix.Close(fd)
			}
			return nil, ctx.Err()
		case err == nil:
			ch := newChannel(fd)
			if _, err := ch.peer(); err != nil {
				_ = ch.Fail(err)
				return nil, err
			}
			return ch, nil
		case errors.Is(err, unix.ECONNABORTED):
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
			select {
			case <-ctx.Done():
			case <-time.After(acceptRetry):
			}
		default:
			return nil, fmt.Errorf("accept a successor: %w: %w", ErrBroken, err)
		}
	}
}

// accept waits for a connection, the read deadline, or an error.
func (s *Socket) accept() (fd int, err error) {
	conn, err := s.file.SyscallConn()
	if err != nil {
		return -1, err
	}
	waitErr := conn.Read(func(listener uintptr) bool {
		for err = unix.EINTR; err == unix.EINTR; {
			fd, _, err = unix.Accept4(int(listener), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		}
		return err != unix.EAGAIN
	})
	if waitErr != nil {
		return -1, waitErr
	}
	return fd, err
}

// peer returns the process at the other end, whose user must be trusted. It is 0 if it
// cannot be seen from here.
func (c *Channel) peer() (pid int, err error) {
	cred, err := unix.GetsockoptUcred(c.fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, fmt.Errorf("read the credentials of the other process: %w", err)
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return 0, fmt.Errorf("process %d of user %d is not trusted with a hand-over: only root and user %d are",
			cred.Pid, cred.Uid, os.Geteuid())
	}
	return int(cred.Pid), nil
}

// HelloTimeout is how long a process that has connected may take until it says hello.
const HelloTimeout = 5 * time.Second

// Hello receives the first word of the other process.
func (c *Channel) Hello(ctx context.Context) (h Hello, err error) {
	fds, err := c.expectJSON(ctx, helloMsg, &h)
	if err != nil {
		return h, fmt.Errorf("receive hello: %w", err)
	}
	closeAll(fds)
	// The end of a pair has our own credentials.
	pid, err := c.peer()
	if pid != 0 && pid != os.Getpid() {
		h.PID = pid
	}
	return h, err
}

// Pair returns the two ends of a channel: ours, and a file for a child.
func Pair() (*Channel, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a channel: %w", withRemedy(err))
	}
	return newChannel(fds[0]), os.NewFile(uintptr(fds[1]), "handover"), nil
}

// FromParent returns the end of a channel that was inherited, and closes f.
func FromParent(f *os.File) (*Channel, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	_ = f.Close()
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		return nil, fmt.Errorf("use the channel of the parent process: %w", err)
	}
	return newChannel(fd), nil
}

// Dial connects to the running process whose socket is at path. If there is none, it is
// nil without an error.
func Dial(path string) (*Channel, error) {
	fd, err := NewSocket()
	if err != nil {
		return nil, err
	}
	ch := newChannel(fd)
	if err = unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err == nil {
		_, err = ch.peer()
	}
	if err == nil {
		return ch, nil
	}
	ch.Close()
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOTDIR):
		return nil, nil
	case errors.Is(err, unix.EACCES):
		err = fmt.Errorf("%w: run as the user of the running process, or as root", err)
	}
	return nil, fmt.Errorf("connect to the running process at %s: %w", path, err)
}

// Fail reports to the other side why it does not go on, and ends the conversation. The error
// means that the other side cannot be reached.
func (c *Channel) Fail(err error) error {
	defer c.Close()
	return c.report(err)
}

// refuse reports an error to the other side, unless it is the one that reported it. It may
// have gone already.
func (c *Channel) refuse(err error) {
	if _, theirs := errors.AsType[*Failure](err); !theirs {
		_ = c.report(err)
	}
}

func (c *Channel) report(err error) error {
	return c.try(failedMsg, []byte(err.Error())[:min(len(err.Error()), maxPiece)])
}

// RequestUpgrade makes the running process upgrade itself, waits for the end of that and
// returns the process that serves then.
func (c *Channel) RequestUpgrade(ctx context.Context) (pid int, err error) {
	if err := c.sendJSON(ctx, helloMsg, Hello{Version: version, PID: os.Getpid(), Upgrade: true}); err != nil {
		return 0, err
	}
	_, err = c.expectJSON(ctx, upgradedMsg, &pid)
	return pid, err
}

// Upgraded answers RequestUpgrade.
func (c *Channel) Upgraded(pid int) {
	_ = c.try(upgradedMsg, strconv.AppendInt(nil, int64(pid), 10))
	c.Close()
}
