package supervise

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/notify"
)

// supervisor is process 1.
type supervisor struct {
	log     *zap.Logger
	stop    syscall.Signal // that has ended the container; 0 before
	stopped int            // the process that has got it
	retired bool           // what this container served is served by another one

	mu     sync.Mutex
	server int  // the process that serves
	given  bool // it has handed over to another container's
}

// Needed reports whether this process is process 1 of a container.
func Needed() bool { return os.Getpid() == 1 }

// Run runs the program as a child, with the arguments and the environment of this process, until
// the process that serves ends. The error is an *Exit, or one of the start.
func Run(log *zap.Logger) error {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram"}) // a free abstract name (unix(7))
	if err != nil {
		return fmt.Errorf("open a socket for the process that serves: %w", err)
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err == nil {
		err = control(raw, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1) })
	}
	if err != nil {
		return fmt.Errorf("prepare the socket for the process that serves: %w", err)
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR2, syscall.SIGCHLD)
	defer signal.Stop(signals)
	s := &supervisor{log: log}
	if err := os.Setenv(notify.SocketVar, conn.LocalAddr().String()); err != nil {
		return fmt.Errorf("name the socket for the process that serves: %w", err)
	}
	// Not by the path, at which there may be another program by now.
	s.server, err = syscall.ForkExec("/proc/self/exe", os.Args,
		&syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return fmt.Errorf("start the process that serves: %w", err)
	}
	shrink()
	var reading sync.WaitGroup
	reading.Go(func() {
		_ = raw.Read(func(fd uintptr) bool { s.read(int(fd)); return false }) // until conn is closed
	})
	code := s.follow(signals, raw)
	_ = conn.Close()
	reading.Wait()
	if code != 0 {
		return &Exit{Code: code}
	}
	return nil
}

// follow passes signals on, and returns the exit code of the container.
func (s *supervisor) follow(signals <-chan os.Signal, raw syscall.RawConn) int {
	for sig := range signals {
		stops := sig == syscall.SIGTERM || sig == syscall.SIGINT
		switch {
		case sig == syscall.SIGCHLD:
			if code, ended := s.reap(raw); ended {
				return code
			}
		case s.retired && stops:
			return 0
		case !s.retired:
			if stops {
				s.stop = sig.(syscall.Signal)
			}
			s.pass(sig.(syscall.Signal))
		}
	}
	return 0
}

// pass sends a signal to the process that serves.
func (s *supervisor) pass(sig syscall.Signal) {
	server, _ := s.serving()
	if sig == s.stop {
		s.stopped = server
	}
	if err := syscall.Kill(server, sig); err != nil {
		s.log.Warn("a signal cannot be passed on", zap.Stringer("signal", sig), zap.Int("to", server), zap.Error(err))
	}
}

// serving returns the process that serves, and whether that has handed over to one elsewhere.
func (s *supervisor) serving() (pid int, given bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server, s.given
}

// reap waits for all children that have ended, and reports whether the container ends with that.
func (s *supervisor) reap(raw syscall.RawConn) (code int, ended bool) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if pid > 0 {
			// What a process has sent is here before its end is.
			_ = control(raw, func(fd int) error { s.read(fd); return nil })
		}
		server, given := s.serving()
		switch {
		case pid > 0 && pid != server: // an orphan, or one that has handed over
			continue
		case err == syscall.ECHILD && !s.retired: // the successor ended before its parent did
			return 1, true
		case pid <= 0:
			if s.stop != 0 && s.stopped != server { // which came when the one before was handing over
				s.pass(s.stop)
			}
			return 0, false
		case given && s.stop == 0:
			// A container that ends is started again, by the same old image, and would take over again.
			s.retired = true
			s.log.Info("waiting for this container to be removed")
		case status.Signaled():
			return 128 + int(status.Signal()), true // as a shell has it
		default:
			return status.ExitStatus(), true
		}
	}
}

// read reads the messages that are there.
func (s *supervisor) read(fd int) {
	buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	for {
		n, oobn, _, _, err := unix.Recvmsg(fd, buf, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return
		}
		if fromHere(oob[:oobn]) {
			s.take(string(buf[:n]))
		}
	}
}

// take takes a message.
func (s *supervisor) take(message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for line := range strings.Lines(message) {
		line = strings.TrimSuffix(line, "\n")
		if line == notify.GivenAway {
			s.given = true
		} else if text, ok := strings.CutPrefix(line, notify.MainPID); ok {
			if pid, err := strconv.Atoi(text); err == nil && pid > 1 {
				s.server, s.given = pid, false
			}
		}
	}
}

// fromHere reports whether a message is of a process of this container: the names of sockets
// are those of a network, which it may share with the host.
func fromHere(oob []byte) bool {
	all, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(all) != 1 {
		return false
	}
	sender, err := unix.ParseUnixCredentials(&all[0])
	return err == nil && sender.Pid != 0
}

// control calls f with the file descriptor of a socket.
func control(raw syscall.RawConn, f func(fd int) error) error {
	var result error
	if err := raw.Control(func(fd uintptr) { result = f(int(fd)) }); err != nil {
		return err
	}
	return result
}
