package netfilter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// LockWait is how many seconds each run of iptables waits for the xtables lock,
// which only the legacy backend has. The first run that does not get it ends the call,
// so that this bounds a call too.
const LockWait = 5

// needed says what to do about a want of privileges.
const needed = "run as root, or with CAP_NET_ADMIN and CAP_NET_RAW"

const (
	// commandTime bounds one run of a program, whatever the caller's context says, and
	// byteTime is what each byte of its input adds: 100,000 rules are some 14 MB.
	commandTime = 30 * time.Second
	byteTime    = 4 * time.Microsecond

	// outputTime is how long what a program has printed may take to be read after it has ended. These programs leave
	// no other that would keep their output open, so this is time for a process that gets no processor.
	outputTime = 10 * time.Second
)

// Run runs a program in the network namespace of the calling thread and returns
// its output.
func Run(ctx context.Context, stdin []byte, path string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTime+time.Duration(len(stdin))*byteTime)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	cmd.WaitDelay = outputTime
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
			if lockHolder(lockFile()) != "" { // it says nothing while it waits for the lock
				err = locked(err)
			}
		}
		return nil, fmt.Errorf("run %s: %w", path, explain(err, stderr.String(), stdin))
	}
	return stdout.Bytes(), nil
}

var failedLine = regexp.MustCompile(`\bline:? (\d+)`)

// explain adds what a program said to the error of running it, and what to do
// about it where that is known. iptables has no error codes for these.
func explain(err error, stderr string, stdin []byte) error {
	said := strings.Join(strings.Fields(stderr), " ")
	switch {
	case errors.Is(err, syscall.EMFILE):
		return fmt.Errorf("%w: raise the descriptor limit (ulimit -n) to 64 or more", err)
	case said == "":
		return err
	case strings.Contains(said, "lock file"):
		return fmt.Errorf("%w: %s: set XTABLES_LOCKFILE to a path that can be written", err, said)
	case denied(said):
		return fmt.Errorf("%w: %s: %s", fs.ErrPermission, said, needed)
	}
	if m := failedLine.FindStringSubmatch(said); m != nil {
		n, _ := strconv.Atoi(m[1])
		if lines := strings.Split(string(stdin), "\n"); n > 0 && n <= len(lines) {
			return fmt.Errorf("%w: %s: %q", err, said, lines[n-1])
		}
	}
	return lockError(fmt.Errorf("%w: %s", err, said))
}

// denied recognises the messages of both backends for want of privileges.
func denied(said string) bool {
	return strings.Contains(said, "Permission denied") || strings.Contains(said, "you must be root") ||
		strings.Contains(said, "Operation not permitted")
}

// SavedBy returns the output of a save program, which lists tables without making
// them. A program that is not installed and a kernel without its backend have
// no rules.
func SavedBy(ctx context.Context, program string) ([]byte, error) {
	path, err := exec.LookPath(program)
	if errors.Is(err, exec.ErrNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("find %s: %w", program, err)
	}
	out, err := Run(ctx, nil, path)
	if err != nil && strings.Contains(err.Error(), "not supported") {
		return nil, nil
	}
	return out, err
}
