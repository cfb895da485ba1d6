package e2e

import (
	"debug/elf"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// imagesVar is the folder where "make image" has left the images.
const imagesVar = "SLUICE_IMAGES"

// descriptor names a blob of an OCI archive.
type descriptor struct {
	Digest   string
	Platform struct{ Architecture, OS string }
}

// archive is an OCI archive (image-spec 1.0), unpacked.
type archive struct {
	t   *testing.T
	dir string
}

// open unpacks an archive of make image.
func open(t *testing.T, name string) archive {
	t.Helper()
	images := os.Getenv(imagesVar)
	if images == "" {
		t.Skipf("%s does not name a folder with images: run it by make test, or make image and give bin", imagesVar)
	}
	a := archive{t, t.TempDir()}
	a.tar("-xf", filepath.Join(images, name), "-C", a.dir)
	return a
}

func (a archive) tar(args ...string) {
	a.t.Helper()
	if out, err := exec.Command("tar", args...).CombinedOutput(); err != nil {
		a.t.Fatalf("tar %v: %v, %s", args, err, out)
	}
}

// blob returns the path of a blob.
func (a archive) blob(d descriptor) string {
	return filepath.Join(a.dir, "blobs", strings.Replace(d.Digest, ":", "/", 1))
}

func (a archive) read(path string, into any) {
	a.t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	testbed.Check(a.t, err)
}

// platforms returns the manifests in the index that the archive has, by architecture.
func (a archive) platforms() map[string]descriptor {
	a.t.Helper()
	var top, index struct{ Manifests []descriptor }
	a.read(filepath.Join(a.dir, "index.json"), &top)
	if len(top.Manifests) != 1 {
		a.t.Fatalf("the archive has %d images", len(top.Manifests))
	}
	a.read(a.blob(top.Manifests[0]), &index)
	out := make(map[string]descriptor)
	for _, m := range index.Manifests {
		if m.Platform.OS != "linux" {
			a.t.Errorf("an image for %+v", m.Platform)
		}
		out[m.Platform.Architecture] = m
	}
	return out
}

// unpack unpacks the image of an architecture, and returns its entry point and its PATH.
func (a archive) unpack(architecture, dir string) (entry []string, path string) {
	a.t.Helper()
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	a.read(a.blob(a.platforms()[architecture]), &manifest)
	var config struct {
		Config struct{ Entrypoint, Env []string }
	}
	a.read(a.blob(manifest.Config), &config)
	for _, layer := range manifest.Layers {
		a.tar("-xf", a.blob(layer), "-C", dir)
	}
	for _, v := range config.Config.Env {
		if p, ok := strings.CutPrefix(v, "PATH="); ok {
			path = p
		}
	}
	return config.Config.Entrypoint, path
}

// mountpoints makes what a container runtime makes of a lab's root, to mount there what a pod has.
func mountpoints(l *lab.Lab) {
	l.T.Helper()
	for _, dir := range []string{"/proc", "/dev", "/run", l.Dir} {
		testbed.Check(l.T, os.MkdirAll(l.Root+dir, 0o755))
	}
	for _, file := range []string{l.Root + ".lock", l.Root + "/run/xtables.lock", l.Root + "/dev/null"} {
		testbed.Check(l.T, os.WriteFile(file, nil, 0o600))
	}
}

// TestImagesFor: both images are there for both architectures, with a program of that architecture, and
// the one without a variant has nothing else but licences.
func TestImagesFor(t *testing.T) {
	t.Parallel()
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	for name, others := range map[string]bool{"sluice-image.tar": false, "sluice-image-iptables.tar": true} {
		a := open(t, name)
		if n := len(a.platforms()); n != len(machines) {
			t.Errorf("%s has images for %d architectures", name, n)
		}
		for architecture, machine := range machines {
			root := t.TempDir()
			a.unpack(architecture, root)
			var files []string
			testbed.Check(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				files = append(files, strings.TrimPrefix(path, root))
				return nil
			}))
			own := []string{"/usr/local/bin/sluice", "/usr/share/doc/sluice/LICENSE", "/usr/share/doc/sluice/NOTICE"}
			for _, file := range own {
				if !slices.Contains(files, file) {
					t.Errorf("%s for %s does not have %s", name, architecture, file)
				}
			}
			if ipset := slices.Contains(files, "/usr/sbin/ipset"); ipset != others || !others && len(files) != len(own) {
				t.Errorf("%s for %s has %d files, among them ipset %v", name, architecture, len(files), ipset)
			}
			program, err := elf.Open(filepath.Join(root, "usr/local/bin/sluice"))
			testbed.Check(t, err)
			libraries, err := program.ImportedLibraries()
			if program.Machine != machine || len(libraries) > 0 || err != nil {
				t.Errorf("%s for %s has a program for %s, of %q, %v", name, architecture, program.Machine, libraries, err)
			}
			testbed.Check(t, program.Close())
		}
	}
}

// TestImageScratch: from the image that has nothing but it, the program serves as process 1, hands over to its
// successor, and stops.
func TestImageScratch(t *testing.T) {
	t.Parallel()
	a := open(t, "sluice-image.tar")
	l := lab.New(t, testbed.Config{Pods: 2})
	l.Mode, l.Root = "winuserspace", filepath.Join(t.TempDir(), "root")
	testbed.Check(t, os.Mkdir(l.Root, 0o755))
	_, l.Path = a.unpack(runtime.GOARCH, l.Root)
	mountpoints(l)
	l.Wrap = []string{"unshare", "--pid", "--fork", "--kill-child"}
	l.ServeWeb()
	l.ServeDNS()
	l.Start("--drain-timeout=1s")
	answer := func(when string) {
		t.Helper()
		name, err := l.Client.Who(lab.WebAddr)
		if udp := askOnce(l.Client, "UDP", netip.MustParseAddrPort(lab.DNSAddr)); !strings.HasPrefix(name, "pod-") || !strings.HasPrefix(udp, "pod-") {
			t.Errorf("%s: TCP %q, %v, UDP %q", when, name, err, udp)
		}
	}
	answer("at the start")
	line := l.Output("cat", fmt.Sprintf("/proc/%d/task/%[1]d/children", l.Process.Pid()))
	process1, err := strconv.Atoi(strings.TrimSpace(line))
	testbed.Check(t, err)
	testbed.Check(t, syscall.Kill(process1, syscall.SIGHUP))
	l.Eventually("it hands over", func() bool { return strings.Contains(l.Log.String(), "handed over; this process ends") })
	answer("after a hand-over")
	if strings.Contains(l.Log.String(), "ERROR") {
		t.Error("the log has errors")
	}
	testbed.Check(t, syscall.Kill(process1, syscall.SIGTERM))
	if code := l.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
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

// TestImage: the program serves from its image with iptables, with a root file system that it
// cannot write and the few capabilities that its pods have, over both iptables.
func TestImage(t *testing.T) {
	t.Parallel()
	a := open(t, "sluice-image-iptables.tar")
	root := filepath.Join(t.TempDir(), "root")
	testbed.Check(t, os.Mkdir(root, 0o755))
	entry, path := a.unpack(runtime.GOARCH, root)
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
		mountpoints(l)
		for _, pod := range l.Pods {
			testbed.Keep(t)(pod.WhoTCP(":8080"))
			testbed.Keep(t)(pod.WhoUDP(pod.Addr4.String() + ":8080"))
		}
		l.PublishWeb()
		l.Write("dns.yaml", loadBalancer("dns", "10.96.0.53:53", "UDP", 80, "", "203.0.113.53"),
			testbed.SliceManifest("dns", 1, 8080, "UDP", testbed.Addrs(l.Pods...)...))
		l.Start()
		for range 4 {
			if name, err := l.Client.Who(lab.WebAddr); err != nil || !strings.HasPrefix(name, "pod-") {
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
