package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/bench/testbed"
)

const (
	// rootVar has the test binary become the program in a root file system, and
	// manifestsVar names the folder that it sees there.
	rootVar      = "SLUICE_TEST_ROOT"
	manifestsVar = "SLUICE_TEST_MANIFESTS"

	// imageVar is where "make image" has left the image.
	imageVar = "SLUICE_IMAGE"
)

// capabilities are those of deploy/base/daemonset.yaml.
var capabilities = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_RESOURCE}

// unpack unpacks the image of an OCI archive (image-spec 1.0), and returns its
// entry point and its PATH.
func unpack(t *testing.T, archive, dir string) (entry []string, path string) {
	t.Helper()
	blobs := t.TempDir()
	tar := func(args ...string) {
		if out, err := exec.Command("tar", args...).CombinedOutput(); err != nil {
			t.Fatalf("tar %v: %v, %s", args, err, out)
		}
	}
	tar("-xf", archive, "-C", blobs)
	read := func(file string, into any) {
		data, err := os.ReadFile(filepath.Join(blobs, file))
		if err == nil {
			err = json.Unmarshal(data, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	type descriptor struct{ Digest string }
	blob := func(d descriptor) string { return filepath.Join("blobs", strings.Replace(d.Digest, ":", "/", 1)) }
	var index struct{ Manifests []descriptor }
	read("index.json", &index)
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	read(blob(index.Manifests[0]), &manifest)
	var config struct {
		Config struct{ Entrypoint, Env []string }
	}
	read(blob(manifest.Config), &config)
	for _, layer := range manifest.Layers {
		tar("-xf", filepath.Join(blobs, blob(layer)), "-C", dir)
	}
	for _, v := range config.Config.Env {
		if p, ok := strings.CutPrefix(v, "PATH="); ok {
			path = p
		}
	}
	return config.Config.Entrypoint, path
}

// enter makes this process what a container runtime makes of a pod of
// deploy/base/daemonset.yaml, in the network namespace that it is in already: the
// root file system and /proc/sys cannot be written, what is mounted is mounted, and
// there are no capabilities but those asked for. It ends in the program.
func enter(root string) error {
	runtime.LockOSThread()
	manifests := os.Getenv(manifestsVar)
	mount := func(from, to string, flags uintptr) error {
		if err := unix.Mount(from, to, "", flags, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", from, to, err)
		}
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	const readOnly = unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY
	for _, m := range []struct {
		from, to string
		flags    uintptr
	}{
		{"", "/", unix.MS_REC | unix.MS_PRIVATE},
		{root, root, unix.MS_BIND},
		{"/proc", root + "/proc", unix.MS_BIND | unix.MS_REC},
		{root + "/proc/sys", root + "/proc/sys", unix.MS_BIND},
		{"", root + "/proc/sys", readOnly},
		{"/dev/null", root + "/dev/null", unix.MS_BIND},
		{root + ".lock", root + "/run/xtables.lock", unix.MS_BIND},
		{manifests, root + manifests, unix.MS_BIND},
		{"", root, readOnly},
	} {
		if err := mount(m.from, m.to, m.flags); err != nil {
			return err
		}
	}
	if err := unix.Chroot(root); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	wanted := map[uintptr]bool{}
	for _, c := range capabilities {
		wanted[c] = true
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if !wanted[c] {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
				return fmt.Errorf("drop capability %d: %w", c, err)
			}
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("allow no escalation: %w", err)
	}
	const program = "/usr/local/bin/sluice"
	return fmt.Errorf("start %s: %w", program, unix.Exec(program, append([]string{program}, os.Args[1:]...), []string{"PATH=" + os.Getenv("PATH")}))
}

// effective returns the effective capabilities of a process, as bits.
func (l *lab) effective(pid string) uint64 {
	l.t.Helper()
	for line := range strings.Lines(l.output("cat", "/proc/"+pid+"/status")) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			if err != nil {
				l.t.Fatal(err)
			}
			return caps
		}
	}
	l.t.Fatalf("process %s has no capabilities", pid)
	return 0
}

// TestImage: the program serves from its image, with a root file system that it
// cannot write and the few capabilities that its pods have, over both iptables.
func TestImage(t *testing.T) {
	t.Parallel()
	archive := os.Getenv(imageVar)
	if archive == "" {
		t.Skipf("%s does not name an image: run it by make test, or make image and give bin/sluice-image.tar", imageVar)
	}
	root := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	entry, path := unpack(t, archive, root)
	if len(entry) != 1 || entry[0] != "/usr/local/bin/sluice" {
		t.Errorf("entry point %v", entry)
	}
	var asked uint64
	for _, c := range capabilities {
		asked |= 1 << c
	}
	for _, legacy := range []bool{false, true} {
		l := newLab(t, testbed.Config{Pods: 2})
		l.root, l.path = root, path
		if legacy {
			l.path = "/usr/lib/iptables-legacy:" + path
		}
		for _, dir := range []string{"/proc", "/dev", l.dir} {
			if err := os.MkdirAll(root+dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, file := range []string{root + ".lock", root + "/run/xtables.lock", root + "/dev/null"} {
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, pod := range l.Pods {
			keep(t)(pod.WhoTCP(":8080"))
			keep(t)(pod.WhoUDP(pod.Addr4.String() + ":8080"))
		}
		l.write("web.yaml", service("web", webAddr, "TCP", ""), slice("web", 1, 8080, "TCP", addrs(l.Pods...)...))
		l.write("dns.yaml", loadBalancer("dns", "10.96.0.53:53", "UDP", 80, "", "203.0.113.53"), slice("dns", 1, 8080, "UDP", addrs(l.Pods...)...))
		l.start()
		for range 4 {
			if name, err := who(l.Client, webAddr); err != nil || !strings.HasPrefix(name, "pod-") {
				t.Errorf("TCP, legacy %v: %q, %v", legacy, name, err)
			}
		}
		for _, addr := range []string{"10.96.0.53:53", "203.0.113.53:53", l.Node.Addr4.String() + ":80"} {
			if got := askOnce(l.Client, "UDP", netip.MustParseAddrPort(addr)); !strings.HasPrefix(got, "pod-") {
				t.Errorf("UDP %s, legacy %v: %s", addr, legacy, got)
			}
		}
		if want, got := l.effective("self")&asked, l.effective(strconv.Itoa(l.cmd.Process.Pid)); got != want {
			t.Errorf("it runs with the capabilities %#x, want %#x: those of %#x that there are here", got, want, asked)
		}
		if strings.Contains(l.log.String(), "ERROR") {
			t.Error("the log has errors")
		}
		l.signal(syscall.SIGTERM)
		if code := l.wait(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		if out, err := l.command("--cleanup").CombinedOutput(); err != nil || strings.Contains(l.output("iptables-save")+l.output("iptables-legacy-save"), "SLUICE") {
			t.Errorf("cleanup, legacy %v: %v, %s", legacy, err, out)
		}
	}
}
