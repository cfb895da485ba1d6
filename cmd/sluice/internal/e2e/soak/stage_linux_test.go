package soak

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// nodePorts is how many ephemeral ports the node has: few, so that they can be used up.
const nodePorts = 4000

// stage is the program with victims and an attacker.
type stage struct {
	*lab.Lab
	*victims
	*attacker
	pidFile, socket string
	dropped         int64 // by the kernel, until the last row
	moves           int   // until then
}

func newStage(t *testing.T) *stage {
	t.Helper()
	l := lab.New(t, testbed.Config{Clients: 2, Pods: pods})
	run := filepath.Join(t.TempDir(), "run")
	testbed.Check(t, os.Mkdir(run, 0o700))
	testbed.Check(t, l.Node.Sysctl("net.ipv4.ip_local_port_range", fmt.Sprint("40000 ", 40000+nodePorts-1)))
	s := &stage{Lab: l, victims: newVictims(l), attacker: newAttacker(l),
		pidFile: filepath.Join(run, "pid"), socket: filepath.Join(run, "handover.sock")}
	s.publishMovers(0)
	var err error
	l.File, err = os.Create(filepath.Join(run, "log"))
	testbed.Check(t, err)
	t.Cleanup(func() {
		if pid := s.pid(); pid > 1 { // a successor is no child of this process
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill()
			}
		}
		const enough = 1 << 16 // to have what goroutines do
		if t.Failed() {
			log, _ := os.ReadFile(l.File.Name())
			t.Logf("the end of the programs' log:\n%s", log[max(0, len(log)-enough):])
		}
		_ = l.File.Close()
	})
	return s
}

// start starts the program. A flow is in use for longer than the pause between two questions.
func (s *stage) start() {
	s.Lab.T.Helper()
	s.Lab.Start("--pid-file", s.pidFile, "--handover-socket", s.socket, "--udp-timeout", "2s",
		"--auto-stabilization", stabilizes.String())
	s.Lab.Eventually("the program can be upgraded", func() bool {
		_, err := os.Stat(s.socket)
		return err == nil && s.pid() != 0
	})
}

// pid returns the process that serves.
func (s *stage) pid() int {
	b, err := os.ReadFile(s.pidFile)
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return pid
}

// upgrade has the program upgraded.
func (s *stage) upgrade() error {
	before := s.pid()
	out, err := s.Lab.Command("upgrade", "--handover-socket", s.socket).CombinedOutput()
	if err != nil {
		return fmt.Errorf("upgrade: %w: %s", err, out)
	}
	s.Lab.Eventually("the old process is gone", func() bool { return !testbed.Alive(before) && s.pid() != before })
	return nil
}

// newcomer has a Service come, be served, and go.
func (s *stage) newcomer(turn int) {
	s.Lab.T.Helper()
	name, addr := fmt.Sprint("newcomer-", turn), fmt.Sprintf("10.96.3.%d:80", turn%250+1)
	s.Lab.Publish(name, addr, "TCP", "", 8080, s.Lab.Pods[:tenants]...)
	s.Lab.Eventually(name+" is served", func() bool {
		who, err := s.Lab.Client.TryAsk("tcp", addr, 2*time.Second) // the next one is not too early
		return err == nil && who != ""
	})
	testbed.Check(s.Lab.T, os.Remove(filepath.Join(s.Lab.Dir, name+".yaml")))
}

// bitten returns how far an attack has moved its series.
func (s *stage) bitten(atk attack) float64 {
	if atk.bite == "" {
		return 0
	}
	return s.Lab.Metric(atk.bite)
}
