package handover

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// containerScript makes of $1 the root file system of a container that has its own mounts
// and processes, with $2 as /run/sluice (the hostPath), $3 as /manifests and a copy of the
// program $4, and runs that there.
const containerScript = `set -e
root=$1 run=$2 manifests=$3 program=$4
shift 4
mount --make-rprivate /
mount -t tmpfs none "$root"
for d in usr etc dev; do mkdir "$root/$d"; mount --rbind "/$d" "$root/$d"; done
for d in bin sbin lib lib64; do
	if [ -L "/$d" ]; then cp -P "/$d" "$root/$d"; elif [ -d "/$d" ]; then mkdir "$root/$d"; mount --rbind "/$d" "$root/$d"; fi
done
mkdir -p "$root/proc" "$root/tmp" "$root/run/sluice" "$root/manifests"
mount -t proc proc "$root/proc"
mount --bind "$run" "$root/run/sluice"
mount --bind "$manifests" "$root/manifests"
cp "$program" "$root/sluice"
exec chroot "$root" /sluice --manifests /manifests --handover-socket /run/sluice/handover.sock "$@"`

// container starts a program in a root of its own, on the node, as process 1.
func (n *line) container(program string, args ...string) *testbed.Process {
	n.T.Helper()
	cmd := n.Node.Command(context.Background(), "unshare", append([]string{"--mount", "--pid", "--fork", "sh", "-c", containerScript, "sh",
		n.T.TempDir(), filepath.Dir(n.socket), n.Dir, program}, args...)...)
	cmd.Env = append(os.Environ(), lab.ProgramVar+"="+n.Dir)
	cmd.Stdout, cmd.Stderr = n.File, n.File
	p, err := cmd.Launch()
	testbed.Check(n.T, err)
	n.T.Cleanup(func() { // the container ends with its first process, and unshare with that
		for _, pid := range n.Processes() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = p.Wait(context.Background())
	})
	return p
}

// buildProgram builds the program of the sources in a folder.
func buildProgram(t *testing.T, dir, version string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "sluice")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-X main.version="+version, "-o", to, "./cmd/sluice")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build version %s: %v, %s", version, err, out)
	}
	return to
}

// TestTakeOverBySocket: a container takes over, under load, from one with another root,
// another program, and other processes, through the socket in a folder that both see.
func TestTakeOverBySocket(t *testing.T) {
	testbed.Race(t)
	testbed.Timed(t)
	n := newLine(t, testbed.Config{})
	l := newLoad(n.Lab)
	sig := n.newAssoc()
	programs := []string{os.Args[0], os.Args[0]}
	if !testing.Short() {
		programs[1] = buildProgram(t, filepath.Join("..", "..", "..", "..", ".."), "another")
	}
	serving := func(count int) {
		t.Helper()
		n.Eventually("it serves", func() bool { return strings.Count(n.logged(), "\tserving\t") == count })
	}
	n.container(programs[0], "--udp-timeout", flowTimeout.String())
	serving(1)
	sig.renew()
	defer sig.close()
	const flows, times = 10, 6
	for i := range l.paths {
		l.hold(l.addr(i, 9000), 100)
		for range flows {
			l.ask(l.addr(i, 53))
		}
		l.connect(n.Client, l.addr(i, 80), 50)
		l.connect(n.Node, l.addr(i, 80), 50)
	}
	for i := range times {
		n.container(programs[(i+1)%2], "--udp-timeout", flowTimeout.String())
		serving(i + 2)
		sig.works()
		// The container before stays, so that nobody starts it again, and has nothing.
		n.Eventually("the one before has retired", func() bool { return strings.Count(n.logged(), "waiting for this container to be removed") == i+1 })
	}
	if got := strings.Count(n.logged(), `"version": "another"`); got < times/2 && !testing.Short() {
		t.Errorf("the other program took part %d times", got)
	}
	l.endWell(flows)
}

// TestRefusedContainers: a container that is not set up to take over is told why, and
// disturbs nobody.
func TestRefusedContainers(t *testing.T) {
	t.Parallel()
	n := newLine(t, testbed.Config{})
	n.ServeEcho()
	n.pidFile = filepath.Join(t.TempDir(), "pid") // whose folder stays as it is
	n.start()
	c := n.Hold()
	refused := func(what, want string, on *testbed.Host, argv ...string) {
		t.Helper()
		cmd := on.Command(t.Context(), argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), lab.ProgramVar+"="+n.Dir)
		out, err := cmd.CombinedOutput()
		if testbed.ExitCode(err) != 1 || !strings.Contains(string(out), want) {
			t.Errorf("%s: start = %v, %s; want %q", what, err, out, want)
		}
		c.Works()
		n.Hold().Works()
	}
	program := []string{os.Args[0], "--manifests", n.Dir, "--handover-socket", n.socket}
	refused("another network namespace", "hostNetwork: true", n.Pods[0], program...)
	refused("no right to write rules", "CAP_NET_ADMIN", n.Node, append([]string{"setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"}, program...)...)
	program[4] = filepath.Join(t.TempDir(), "handover.sock")
	refused("another folder", "--handover-socket, in a folder that both see", n.Node, program...)
	testbed.Check(t, os.Chmod(filepath.Dir(n.socket), 0o777))
	n.mustUpgrade() // what is served goes on; only the next one cannot ask
	c.Works()
	if !strings.Contains(n.logged(), "can be written by other users") {
		t.Error("the folder that others can write to is not reported")
	}
}
