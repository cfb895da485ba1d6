package notify

import (
	"fmt"
	"os"
	"strings"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"
)

// SocketVar is the environment variable that names the manager's socket.
const SocketVar = "NOTIFY_SOCKET"

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

func send(log *zap.Logger, lines ...string) {
	if _, err := daemon.SdNotify(false, strings.Join(lines, "\n")); err != nil {
		log.Warn("the service manager cannot be notified", zap.Strings("state", lines), zap.Error(err))
	}
}
