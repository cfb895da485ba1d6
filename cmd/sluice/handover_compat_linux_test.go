package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/bench/testbed"
)

// formatFiles say what crosses in a handover. What was before their last change is the
// previous format.
var formatFiles = []string{"message_linux.go", "record_linux.go", "wire_linux.go", "channel_linux.go"}

// previousFormat builds the program with the previous format of handovers, from the
// history of the sources, where there is one.
func previousFormat(t *testing.T) string {
	t.Helper()
	top := filepath.Join("..", "..")
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-C", top}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	var paths []string
	for _, f := range formatFiles {
		paths = append(paths, "cmd/sluice/internal/handover/"+f)
	}
	commit, err := git(append([]string{"log", "-1", "--format=%H", "--"}, paths...)...)
	if err != nil || commit == "" {
		t.Skipf("NOT TESTED: the sources have no history here (%v)", err)
	}
	if _, err := git(append([]string{"diff", "--quiet", "HEAD", "--"}, paths...)...); err != nil {
		commit = "HEAD" // what is being worked on is the last change
	} else if _, err := git("cat-file", "-e", commit+"^:"+paths[0]); err == nil {
		commit += "^"
	} // else there was nothing before it
	dir := t.TempDir()
	out, err := exec.Command("sh", "-c", `git -C "$1" archive "$2" | tar -x -C "$3"`, "sh", top, commit, dir).CombinedOutput()
	if err != nil {
		t.Fatalf("take the sources of %s: %v, %s", commit, err, out)
	}
	t.Logf("the previous format is that of %s", commit)
	return buildProgram(t, dir, "previous")
}

// TestOtherVersions: connections cross from a program with the previous format of
// handovers to this one, and back, and again.
func TestOtherVersions(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it builds another version of the program")
	}
	old := previousFormat(t)
	n := newLine(t, testbed.Config{})
	n.serveEcho()
	n.serveDNS()
	program := filepath.Join(t.TempDir(), "sluice")
	install := func(from string) {
		t.Helper()
		if err := os.Remove(program); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if err := os.Symlink(from, program); err != nil {
			t.Fatal(err)
		}
	}
	install(old)
	n.program = program
	n.start("--udp-timeout", "10s")
	if !strings.Contains(n.logged(), `"version": "previous"`) {
		t.Fatal("it is not the other program that runs")
	}
	conns := []*talker{n.talker(), n.talker()}
	u := newClient(t, n.Client, dnsAddr)
	pod, err := u.insist()
	if err != nil {
		t.Fatal(err)
	}
	for i, to := range []string{os.Args[0], old, os.Args[0]} {
		install(to)
		n.mustUpgrade()
		for _, c := range conns {
			c.works()
		}
		if got, err := u.ask([]byte("?"), patience); err != nil || got != pod {
			t.Errorf("upgrade %d: the UDP flow is answered by %q, %v; was %q", i, got, err, pod)
		}
		if got := n.metric("sluice_tcp_accepted_connections_total"); got != float64(len(conns)) {
			t.Errorf("upgrade %d: %v connections have been accepted, want %d", i, got, len(conns))
		}
		conns = append(conns, n.talker())
		conns[len(conns)-1].works()
	}
}
