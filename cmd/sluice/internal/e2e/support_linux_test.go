package e2e

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// unpack reads an archive of sluice support.
func unpack(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	testbed.Check(t, err)
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the archive has %v, %v", info.Mode(), err)
	}
	zipped, err := gzip.NewReader(f)
	testbed.Check(t, err)
	archive, all := tar.NewReader(zipped), make(map[string]string)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		testbed.Check(t, err)
		text, err := io.ReadAll(archive)
		testbed.Check(t, err)
		_, name, _ := strings.Cut(path.Clean(h.Name), "/")
		all[name] = string(text)
	}
}

// TestSupport: the archive has what was asked of the process and of the host; without a process it
// has what is left.
func TestSupport(t *testing.T) {
	t.Parallel()
	run := filepath.Join(t.TempDir(), "run")
	l := looker{lab.New(t, testbed.Config{}), filepath.Join(run, "api.sock")}
	l.PublishWeb()
	l.Start("--handover-socket", filepath.Join(run, "handover.sock"))
	l.Eventually("the API is served", func() bool { _, err := os.Stat(l.socket); return err == nil })
	l.run("drain", "node/worker-1", "--force")
	file := filepath.Join(l.Dir, "bundle.tar.gz")
	if got := l.run("support", "-f", file); !strings.Contains(got, "services.json") ||
		!strings.Contains(got, "wrote "+file) {
		t.Errorf("it prints\n%s", got)
	}
	all := unpack(t, file)
	for name, want := range map[string]string{
		"status.json": `"pid"`, "services.json": `"name": "web"`, "endpoints.json": l.Pods[0].Addr4.String() + ":8080",
		"events.json": "ServiceAdded", "config.json": "handover-socket", "drains.json": "node/worker-1",
		"metrics.txt": "sluice_services 1", "kernel.txt": "net/ipv4/ip_forward = ",
		"process/limits.txt": "Max open files", "process/status.txt": "VmRSS", "process/descriptors.txt": "are open",
		"net/sockstat.txt": "TCP: inuse", "program.txt": "go1.",
	} {
		if !strings.Contains(all[name], want) {
			t.Errorf("%s lacks %q:\n%.500s", name, want, all[name])
		}
	}
	rules := all["nftables.txt"] + all["iptables.txt"] + all["ipset.txt"]
	if !strings.Contains(rules, lab.WebIP) &&
		!strings.Contains(all["errors.txt"], "nftables.txt: ") {
		t.Errorf("there are no rules: %s", all["errors.txt"])
	}
	l.fails("support", "--api-socket", l.socket, "-f", file, "file exists")
	none := filepath.Join(l.Dir, "none.tar.gz")
	if out, err := l.Command("support", "--api-socket", l.Dir+"/none.sock", "-f", none).CombinedOutput(); err != nil {
		t.Errorf("without a process: %v, %s", err, out)
	}
	if all := unpack(t, none); all["kernel.txt"] == "" ||
		!strings.Contains(all["errors.txt"], "services.json: no running Sluice") {
		t.Errorf("without a process it has %v", all["errors.txt"])
	}
}
