package notify

import (
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"
)

// SocketVar is the environment variable that names the manager's socket.
const SocketVar = "NOTIFY_SOCKET"

// patience is how long a message may wait for its manager.
const patience = time.Second

// What package supervise reads; systemd ignores variables that begin with X_.
const (
	MainPID   = "MAINPID="         // the process that serves from now on
	GivenAway = "X_GIVEN_AWAY=yes" // a process that is no child of ours serves from now on
)

// Managed reports whether there is a manager, which follows a hand-over to another process.
func Managed() bool { return os.Getenv(SocketVar) != "" }

// Serving reports that this process serves, be it after a start or a hand-over.
func Serving(log *zap.Logger, status string) {
	send(log, daemon.SdNotifyReady, mainPID(os.Getpid()), "STATUS="+status)
}

// Reloading reports that a successor is being started.
func Reloading(log *zap.Logger) {
	send(log, daemon.SdNotifyReloading, strings.TrimSpace(daemon.SdNotifyMonotonicUsec()),
		"STATUS=handing over to a successor")
}

// Kept reports that no successor has taken over, for a reason: this process serves on.
func Kept(log *zap.Logger, reason error) {
	line := strings.ReplaceAll(reason.Error(), "\n", " ")
	send(log, daemon.SdNotifyReady, "STATUS=serving on, not handed over: "+line)
}

// Successor reports that a child of this process has taken over.
func Successor(log *zap.Logger, pid int) { send(log, daemon.SdNotifyReady, mainPID(pid)) }

// Left reports that a process that the manager did not start, such as that of another
// container, has taken over: this one ends, and is not to be started again.
func Left(log *zap.Logger) {
	send(log, daemon.SdNotifyStopping, GivenAway, "STATUS=handed over to a process of another service")
}

// Stopping reports that this process ends, and what it does meanwhile.
func Stopping(log *zap.Logger, status string) { send(log, daemon.SdNotifyStopping, "STATUS="+status) }

// Alive feeds the manager's watchdog.
func Alive(log *zap.Logger) { send(log, daemon.SdNotifyWatchdog) }

func mainPID(pid int) string { return fmt.Sprintf("%s%d", MainPID, pid) }

// send gives up where the manager reads nothing, as while it is stopped. The library would wait for ever.
func send(log *zap.Logger, lines ...string) {
	name := os.Getenv(SocketVar)
	if name == "" {
		return
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err == nil {
		_ = c.SetWriteDeadline(time.Now().Add(patience))
		_, err = c.Write([]byte(strings.Join(lines, "\n")))
		_ = c.Close()
	}
	if err != nil {
		log.Warn("the service manager cannot be notified", zap.Strings("state", lines), zap.Error(err))
	}
}
