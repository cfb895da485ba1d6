package redirect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// probeCommand names the variable that makes this program a process that probes
// with the command it holds.
const probeCommand = "REDIRECT_TEST_PROBE"

func TestMain(m *testing.M) {
	command, ok := os.LookupEnv(probeCommand)
	if !ok {
		os.Exit(testbed.Main(m))
	}
	_, err := (&IPTables{Command: command, NoIPSet: os.Getenv("NOIPSET") != ""}).Probe(context.Background())
	if cleanup := Cleanup(context.Background()); !errors.Is(cleanup, fs.ErrPermission) {
		err = fmt.Errorf("Cleanup: %w", cleanup)
	}
	fmt.Print(err)
	if errors.Is(err, fs.ErrPermission) {
		os.Exit(13)
	}
	os.Exit(0)
}

func TestProbe(t *testing.T) {
	eachIPTables(t, func(t *testing.T, v variant) {
		newNode(t)
		before := saved(t)
		s := v.iptables()
		facts, err := s.Probe(t.Context())
		check(t, err)
		backend := "nf_tables"
		if strings.Contains(v.command, "legacy") {
			backend = "legacy"
		}
		if !strings.Contains(facts.Version, backend) || facts.IPSet == v.noSets || len(facts.Warnings) != 0 {
			t.Errorf("Probe = %+v", facts)
		}
		if save := output(t, v.command+"-save"); strings.Contains(save, "PROBE") ||
			strings.Contains(output(t, "ipset", "save"), "PROBE") {
			t.Errorf("Probe left something:\n%s", save)
		}
		check(t, Cleanup(t.Context()))
		if after := saved(t); emptyTables(after) != emptyTables(before) {
			t.Errorf("left behind after Probe and Cleanup:\n%s", after)
		}
	})
}

func TestProbeWithoutIPTables(t *testing.T) {
	for _, command := range []string{"iptables-nowhere", filepath.Join(t.TempDir(), "iptables")} {
		_, err := (&IPTables{Command: command}).Probe(t.Context())
		if err == nil || !errors.Is(err, exec.ErrNotFound) && !errors.Is(err, fs.ErrNotExist) ||
			!strings.Contains(err.Error(), "install iptables") {
			t.Errorf("Probe with %s: %v", command, err)
		}
	}
}

// TestProbeWithoutPrivileges runs this program again in a user namespace that
// does not own the network namespace, and so without privileges there.
func TestProbeWithoutPrivileges(t *testing.T) {
	newNode(t)
	for _, command := range []string{"iptables-nft", "iptables-legacy"} {
		for _, noSets := range []string{"", "1"} {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), probeCommand+"="+command, "NOIPSET="+noSets)
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
			out, err := cmd.Output()
			if cmd.ProcessState == nil {
				t.Skipf("SKIPPED: no user namespaces here: %v", err)
			}
			if cmd.ProcessState.ExitCode() != 13 || !strings.Contains(string(out), "run as root") ||
				strings.Contains(string(out), "\n") {
				t.Errorf("%s, without sets %q: exit %d: %s", command, noSets, cmd.ProcessState.ExitCode(), out)
			}
		}
	}
}

// TestLockFile makes the xtables lock impossible to take.
func TestLockFile(t *testing.T) {
	newNode(t)
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "no", "such", "lock"))
	_, err := (&IPTables{Command: "iptables-legacy", NoIPSet: true}).Probe(t.Context())
	if err == nil || !strings.Contains(err.Error(), "set XTABLES_LOCKFILE") {
		t.Errorf("Probe: %v", err)
	}
	lock := filepath.Join(t.TempDir(), "lock")
	t.Setenv("XTABLES_LOCKFILE", lock)
	if _, err := (&IPTables{Command: "iptables-legacy", NoIPSet: true}).Probe(t.Context()); err != nil {
		t.Errorf("Probe with another lock file: %v", err)
	}
}

// TestLockHolder has another process keep the xtables lock, for longer than we
// wait and for longer than the caller does.
func TestLockHolder(t *testing.T) {
	newNode(t)
	lock := filepath.Join(t.TempDir(), "lock")
	t.Setenv("XTABLES_LOCKFILE", lock)
	s := &IPTables{Command: "iptables-legacy", NoIPSet: true}
	syncPlan(t, s, Plan{})

	holder := exec.Command("flock", lock, "sh", "-c", "echo locked; read end")
	in, err := holder.StdinPipe()
	check(t, err)
	out, err := holder.StdoutPipe()
	check(t, err)
	check(t, holder.Start())
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	blamed := fmt.Sprintf("held by process %d (flock %s sh", holder.Process.Pid, lock)
	change := Plan{TCPPort: 1}
	ctx, cancel := context.WithTimeout(t.Context(), patience/20)
	defer cancel()
	if err := s.Sync(ctx, change.Update()); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), blamed) {
		t.Errorf("Sync with a short deadline: %v, want %q", err, blamed)
	}
	start := time.Now()
	if err := s.Sync(t.Context(), change.Update()); err == nil || !strings.Contains(err.Error(), blamed) {
		t.Errorf("Sync: %v, want %q", err, blamed)
	}
	if took := time.Since(start); took > netfilter.LockWait*time.Second+patience {
		t.Errorf("Sync waited for %v", took)
	}
	check(t, in.Close())
	holder.Wait() // read says that there is no line
	syncPlan(t, s, change)
}

func TestProbeWarnsOfOtherBackend(t *testing.T) {
	for ours, theirs := range map[string]string{"iptables-nft": "iptables-legacy", "iptables-legacy": "iptables-nft"} {
		newNode(t)
		output(t, theirs, "-A", "INPUT", "-p", "tcp", "--dport", "22", "-j", "ACCEPT")
		facts, err := (&IPTables{Command: ours}).Probe(t.Context())
		if err != nil || len(facts.Warnings) != 1 || !strings.Contains(facts.Warnings[0], theirs+" has 1 rules") {
			t.Errorf("%s beside %s: %+v, %v", ours, theirs, facts, err)
		}
	}
}

func TestProbeBindAddr(t *testing.T) {
	for addr, ipv6 := range map[string]bool{"127.0.0.1": false, "::1": true, "::ffff:127.0.0.1": false, "10.1.0.1": true,
		"fd01::1": false} {
		_, err := (&IPTables{BindAddr: netip.MustParseAddr(addr), IPv6: ipv6}).Probe(t.Context())
		if err == nil || !strings.Contains(err.Error(), addr) {
			t.Errorf("Probe with bind address %s, IPv6 %v: %v", addr, ipv6, err)
		}
	}
}
