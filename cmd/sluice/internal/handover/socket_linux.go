package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Hello is the first word of a process that has an errand.
type Hello struct {
	hello
	Upgrade bool // it asks the running process to upgrade itself; it takes over nothing
	peer    int  // as the kernel says; 0 if it cannot be seen from here
	version int
}

// check refuses who cannot take over.
func (g *giver) check(h *Hello) (err error) {
	if g.report.Peer = h.peer; h.peer == 0 {
		g.report.Peer = h.PID
	}
	ours, err := networkNamespace()
	if err != nil {
		return err
	}
	if h.NetNS != ours {
		return fmt.Errorf("the new process is in network namespace %s and the running one in %s: listening sockets stay in theirs, "+
			"so both must be in the same one (for a pod: hostNetwork: true)", h.NetNS, ours)
	}
	if h.version, err = chooseVersion(h.hello); err != nil {
		return err
	}
	return g.checkSCTP(&h.hello)
}

// networkNamespace names the network namespace that we are in (namespaces(7)).
func networkNamespace() (string, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &st); err != nil {
		return "", fmt.Errorf("look at the network namespace: %w", err)
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino), nil
}

// Socket is where a running process is asked to hand over.
type Socket struct {
	path string
	fd   int
	ino  uint64
}

// Listen makes the socket at path, in place of one that is there: of a process that has
// ended, or that we have taken over from. Its directory is made if it does not exist;
// nobody but us may be able to write to it.
func Listen(path string) (*Socket, error) {
	s, err := listen(path)
	if err != nil {
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
		return fmt.Sprintf(": directory %s is on a read-only file system: give --handover-socket a file on one that can be written (for a pod: on a hostPath volume without readOnly)", dir)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Sprintf(": Sluice, as user %d, may not write to directory %s: give --handover-socket a file in one of its own, of mode 0700", os.Geteuid(), dir)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Sprintf(": make room on the file system of directory %s, or give --handover-socket a file on another", dir)
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Sprintf(": %s is to be a directory: give --handover-socket a file in one", dir)
	case errors.Is(err, unix.EINVAL) && len(path)+len(".4194304") > maxSocketPath:
		return fmt.Sprintf(": a socket's name has at most %d bytes, that of the process included: give --handover-socket a shorter one", maxSocketPath)
	}
	return ""
}

func listen(path string) (*Socket, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := private(dir); err != nil {
		return nil, err
	}
	fd, err := newSocket()
	if err != nil {
		return nil, err
	}
	tmp := fmt.Sprintf("%s.%d", path, os.Getpid())
	_ = os.Remove(tmp)
	var st unix.Stat_t
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: tmp})
	if err == nil {
		err = errors.Join(os.Chmod(tmp, 0o600), unix.Listen(fd, 16), unix.Stat(tmp, &st))
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		_ = unix.Close(fd)
		return nil, err
	}
	return &Socket{path: path, fd: fd, ino: st.Ino}, nil
}

// private refuses a directory in which others could put a socket of theirs.
func private(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("look at directory %s: %w", dir, err)
	}
	if uid := os.Geteuid(); st.Uid != 0 && int(st.Uid) != uid {
		return fmt.Errorf("directory %s is that of user %d, and we are %d: others could take over", dir, st.Uid, uid)
	}
	if st.Mode&0o022 != 0 {
		return fmt.Errorf("directory %s can be written by others (mode %#o), who could take over: give one of mode 0700", dir, st.Mode&0o7777)
	}
	return nil
}

func newSocket() (int, error) {
	return unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
}

// Remove removes the socket's file, unless another process has put its own in its
// place. The socket itself stays until the process ends.
func (s *Socket) Remove() {
	var st unix.Stat_t
	if unix.Stat(s.path, &st) == nil && st.Ino == s.ino {
		_ = os.Remove(s.path)
	}
}

// ErrBroken means that nobody can be accepted any more.
var ErrBroken = errors.New("the handover socket is broken")

// Accept waits for a process with an errand. Those that may not have one, or do not
// say which, are sent away and reported as an error, after which Accept goes on to be
// called; ErrBroken and the end of ctx are final.
func (s *Socket) Accept(ctx context.Context) (*Channel, Hello, error) {
	for {
		fd, _, err := unix.Accept4(s.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			ch := newChannel(fd)
			h, err := receiveHello(ctx, ch)
			switch {
			case err == nil:
				return ch, h, nil
			case errors.Is(err, errEnded): // it only wanted to know that we are here
				ch.Close()
				continue
			}
			ch.Fail(err)
			return nil, h, err
		case unix.EAGAIN, unix.EINTR, unix.ECONNABORTED, unix.EMFILE, unix.ENFILE:
			c := Channel{fd: s.fd}
			if err := c.wait(ctx, unix.POLLIN); err != nil {
				return nil, Hello{}, err
			}
		default:
			return nil, Hello{}, fmt.Errorf("accept a successor: %w: %w", ErrBroken, err)
		}
	}
}

// helloTimeout is how long somebody may take to say what for it is there.
const helloTimeout = 5 * time.Second

// receiveHello checks who is there, and what for.
func receiveHello(ctx context.Context, ch *Channel) (h Hello, err error) {
	cred, err := unix.GetsockoptUcred(ch.fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return h, fmt.Errorf("ask who the other process is: %w", err)
	}
	if uid := os.Geteuid(); cred.Uid != 0 && int(cred.Uid) != uid {
		return h, fmt.Errorf("process %d of user %d may not take over: only root and user %d may", cred.Pid, cred.Uid, uid)
	}
	h.peer = int(cred.Pid)
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	m, err := ch.receive(ctx)
	switch {
	case err != nil:
		return h, err
	case m.kind == upgradeMsg:
		h.Upgrade = true
	case m.kind != helloMsg:
		err = fmt.Errorf("message %d came where a hello was due", m.kind)
	default:
		err = json.Unmarshal(m.payload, &h.hello)
	}
	closeAll(m.fds)
	return h, err
}

// Pair returns the two ends of a channel: ours, and a descriptor for a child.
func Pair() (*Channel, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a channel: %w", err)
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

// Greet receives the hello of a child.
func (c *Channel) Greet(ctx context.Context) (Hello, error) {
	var h Hello
	_, err := c.expectJSON(ctx, helloMsg, &h.hello)
	h.peer = h.PID
	return h, err
}

// Dial connects to the running process whose socket is at path. If there is none, it is
// nil without an error.
func Dial(path string) (*Channel, error) {
	fd, err := newSocket()
	if err != nil {
		return nil, err
	}
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	switch {
	case err == nil:
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOTDIR):
		_ = unix.Close(fd)
		return nil, nil
	default:
		_ = unix.Close(fd)
		if errors.Is(err, syscall.EACCES) {
			err = fmt.Errorf("%w: run as the user of the running process, or as root", err)
		}
		return nil, fmt.Errorf("connect to the running process at %s: %w", path, err)
	}
	ch := newChannel(fd)
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if uid := os.Geteuid(); err == nil && cred.Uid != 0 && int(cred.Uid) != uid {
		err = fmt.Errorf("process %d of user %d listens at %s: only root and user %d are trusted", cred.Pid, cred.Uid, path, uid)
	}
	if err != nil {
		ch.Close()
		return nil, err
	}
	return ch, nil
}

// Fail tells the other side why it does not go on, and ends the conversation.
func (c *Channel) Fail(err error) {
	_ = c.try(failedMsg, []byte(err.Error())[:min(len(err.Error()), maxMessage)])
	c.Close()
}

// RequestUpgrade has the running process upgrade itself, waits for the end of that and
// returns the process that serves then.
func (c *Channel) RequestUpgrade(ctx context.Context) (pid int, err error) {
	if err := c.send(ctx, upgradeMsg, nil); err != nil {
		return 0, err
	}
	m, err := c.expect(ctx, upgradedMsg)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(m.payload))
}

// Upgraded answers RequestUpgrade.
func (c *Channel) Upgraded(pid int) {
	_ = c.try(upgradedMsg, strconv.AppendInt(nil, int64(pid), 10))
	c.Close()
}
