package handover

import (
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestSuccessorsAtOnce: of processes that come while another takes over each takes over in its turn, from whichever has
// everything then. One is left, with the connection that the first one had.
func TestSuccessorsAtOnce(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	n := newLine(t, testbed.Config{Pods: 1})
	n.ServeEcho()
	n.start()
	held := n.Hold()
	held.Works()
	const successors = 6
	for range successors {
		cmd := n.Command("--manifests", n.Dir, "--handover-socket", n.socket)
		cmd.Stdout, cmd.Stderr = n.File, n.File
		p, err := cmd.Launch()
		testbed.Check(t, err)
		t.Cleanup(func() { p.Stop(syscall.SIGKILL) })
	}
	n.Eventually("each has taken over", func() bool {
		return strings.Count(n.logged(), "\ttook over from the running process\t") == successors
	})
	n.Eventually("one is left", func() bool { return len(n.Processes()) == 1 })
	held.Works()
	n.Hold().Works()
	for _, wrong := range []string{"starting afresh", "another Sluice", "would not notice"} {
		if strings.Contains(n.logged(), wrong) {
			t.Errorf("%q in the log:\n%s", wrong, n.logged())
		}
	}
}
