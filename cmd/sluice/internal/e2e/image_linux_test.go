package e2e

import (
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
)

// imageVar is where "make image" has left the image.
const imageVar = "SLUICE_IMAGE"

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
		testbed.Check(t, err)
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

// effective returns the effective capabilities of a process, as bits.
func effective(l *lab.Lab, pid string) uint64 {
	l.T.Helper()
	for line := range strings.Lines(l.Output("cat", "/proc/"+pid+"/status")) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			if err != nil {
				l.T.Fatal(err)
			}
			return caps
		}
	}
	l.T.Fatalf("process %s has no capabilities", pid)
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
	testbed.Check(t, os.Mkdir(root, 0o755))
	entry, path := unpack(t, archive, root)
	if len(entry) != 1 || entry[0] != "/usr/local/bin/sluice" {
		t.Errorf("entry point %v", entry)
	}
	var asked uint64
	for _, c := range lab.Capabilities {
		asked |= 1 << c
	}
	for _, legacy := range []bool{false, true} {
		l := lab.New(t, testbed.Config{Pods: 2})
		l.Root, l.Path = root, path
		if legacy {
			l.Path = "/usr/lib/iptables-legacy:" + path
		}
		for _, dir := range []string{"/proc", "/dev", l.Dir} {
			testbed.Check(t, os.MkdirAll(root+dir, 0o755))
		}
		for _, file := range []string{root + ".lock", root + "/run/xtables.lock", root + "/dev/null"} {
			testbed.Check(t, os.WriteFile(file, nil, 0o600))
		}
		for _, pod := range l.Pods {
			testbed.Keep(t)(pod.WhoTCP(":8080"))
			testbed.Keep(t)(pod.WhoUDP(pod.Addr4.String() + ":8080"))
		}
		l.PublishWeb()
		l.Write("dns.yaml", loadBalancer("dns", "10.96.0.53:53", "UDP", 80, "", "203.0.113.53"),
			testbed.SliceManifest("dns", 1, 8080, "UDP", testbed.Addrs(l.Pods...)...))
		l.Start()
		for range 4 {
			if name, err := lab.Who(l.Client, lab.WebAddr); err != nil || !strings.HasPrefix(name, "pod-") {
				t.Errorf("TCP, legacy %v: %q, %v", legacy, name, err)
			}
		}
		for _, addr := range []string{"10.96.0.53:53", "203.0.113.53:53", l.Node.Addr4.String() + ":80"} {
			if got := askOnce(l.Client, "UDP", netip.MustParseAddrPort(addr)); !strings.HasPrefix(got, "pod-") {
				t.Errorf("UDP %s, legacy %v: %s", addr, legacy, got)
			}
		}
		if want, got := effective(l, "self")&asked, effective(l, strconv.Itoa(l.Process.Pid())); got != want {
			t.Errorf("it runs with the capabilities %#x, want %#x: those of %#x that there are here", got, want, asked)
		}
		if strings.Contains(l.Log.String(), "ERROR") {
			t.Error("the log has errors")
		}
		l.Signal(syscall.SIGTERM)
		if code := l.Wait(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		if out, err := l.Command("--cleanup").CombinedOutput(); err != nil || strings.Contains(l.Output("iptables-save")+l.Output("iptables-legacy-save"), "SLUICE") {
			t.Errorf("cleanup, legacy %v: %v, %s", legacy, err, out)
		}
	}
}
