package sysctl

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// readSysctl reads a setting of conntrack in the namespace of the calling thread.
func readSysctl(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("/" + sysctlDir + "/" + name)
	testbed.Check(t, err)
	return strings.TrimSpace(string(b))
}

// TestConntrackTimeouts sets, in a namespace of its own, all that a namespace has.
func TestConntrackTimeouts(t *testing.T) {
	h := testbed.NewHostsT(t, "host")[0]
	h.Run(t, "iptables-nft", "-A", "INPUT", "-m", "conntrack", "--ctstate", "NEW", "-j", "ACCEPT") // loads nf_conntrack
	h.Enter(t)
	names := []string{"nf_conntrack_tcp_timeout_established", "nf_conntrack_tcp_timeout_close_wait",
		"nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream", "nf_conntrack_tcp_be_liberal", "nf_conntrack_acct",
		"nf_conntrack_timestamp"}
	values := func() string {
		var out []string
		for _, name := range names {
			out = append(out, readSysctl(t, name))
		}
		return strings.Join(out, " ")
	}
	if entries, limit, err := Usage(); err != nil || entries < 0 || entries > limit || limit < 1000 {
		t.Errorf("Usage = %d of %d, %v", entries, limit, err)
	}
	before := values()
	if warnings, err := (Conntrack{}).Apply(); len(warnings) != 0 || err != nil || values() != before {
		t.Errorf("the zero value: %q, %v; %s before, %s after", warnings, err, before, values())
	}
	c := Conntrack{TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour, UDP: 1500 * time.Millisecond,
		UDPStream: 200 * time.Second, BeLiberal: true, Accounting: true}
	for range 2 {
		if warnings, err := c.Apply(); len(warnings) != 0 || err != nil {
			t.Errorf("Apply: %q, %v", warnings, err)
		}
		if got, want := values(), "86400 3600 2 200 1 1 1"; got != want {
			t.Errorf("values %s, want %s", got, want)
		}
	}
	// Only the first namespace may change the size, and others need not if it is
	// what they want.
	c = Conntrack{MaxPerCore: 1, Min: 12345}
	warnings, err := c.Apply()
	if err == nil || !strings.Contains(err.Error(), "nf_conntrack_max to 12345") ||
		!strings.Contains(err.Error(), "set it on the host") {
		t.Errorf("Apply of a size: %q, %v", warnings, err)
	}
}

// TestConntrackSize works on files like the kernel's, since the size is that of the
// whole machine.
func TestConntrackSize(t *testing.T) {
	const size = sysctlDir + "/nf_conntrack_max"
	for _, c := range []struct {
		name             string
		conntrack        Conntrack
		online           string
		size, hash       string // before
		wantSize, wantHs string // after
	}{
		{"unset", Conntrack{Min: 1000}, "0-3", "10", "10", "10", "10"},
		{"per core", Conntrack{MaxPerCore: 32768, Min: 1000}, "0-3", "10", "10", "131072", "32768"},
		{"the least", Conntrack{MaxPerCore: 32768, Min: 131072}, "0", "10", "10", "131072", "32768"},
		{"the most", Conntrack{MaxPerCore: 32768}, "0-255", "10", "10", "1048576", "262144"},
		{"the least takes precedence over the most", Conntrack{MaxPerCore: 32768, Min: 2000000}, "0-255", "10", "10",
			"2000000", "500000"},
		{"smaller", Conntrack{MaxPerCore: 1000}, "0-3", "262144", "65536", "4000", "65536"},
		{"some CPUs are off", Conntrack{MaxPerCore: 1000}, "0-1,4,6-7", "10", "10", "5000", "1250"},
	} {
		root := t.TempDir()
		for path, text := range map[string]string{size: c.size, hashSizeFile: c.hash, onlineFile: c.online} {
			path = filepath.Join(root, path)
			testbed.Check(t, os.MkdirAll(filepath.Dir(path), 0o755))
			testbed.Check(t, os.WriteFile(path, []byte(text+"\n"), 0o644))
		}
		warnings, err := c.conntrack.applyBelow(root)
		if len(warnings) != 0 || err != nil {
			t.Errorf("%s: %q, %v", c.name, warnings, err)
		}
		for path, want := range map[string]string{size: c.wantSize, hashSizeFile: c.wantHs} {
			b, err := os.ReadFile(filepath.Join(root, path))
			testbed.Check(t, err)
			if got := strings.TrimSpace(string(b)); got != want {
				t.Errorf("%s: %s is %s, want %s", c.name, path, got, want)
			}
		}
	}
}

// TestConntrackOfKernel asks the real kernel for the sizes that it has already, so
// that nothing is written.
func TestConntrackOfKernel(t *testing.T) {
	if n := cpus("/"); n < 1 || n < runtime.NumCPU() {
		t.Errorf("%d CPUs are online, of which we may use %d", n, runtime.NumCPU())
	}
	have, err := netfilter.ReadNumber("/" + sysctlDir + "/nf_conntrack_max")
	testbed.Check(t, err)
	warnings, err := Conntrack{MaxPerCore: 1, Min: int32(have)}.Apply()
	if err != nil {
		t.Errorf("Apply of the size that is: %q, %v", warnings, err)
	}
}

// TestConntrackReadOnly is a kernel whose files cannot be written, as in a
// container, or that has none. Root may write what nobody may, so that a file
// that is a directory stands for it.
func TestConntrackReadOnly(t *testing.T) {
	root := t.TempDir()
	testbed.Check(t, os.MkdirAll(filepath.Join(root, hashSizeFile), 0o755))
	c := Conntrack{MaxPerCore: 1000, UDP: time.Second}
	warnings, err := c.applyBelow(root)
	if len(warnings) != 1 || !strings.Contains(warnings[0], "the hash of conntrack stays smaller") {
		t.Errorf("warnings %q", warnings)
	}
	if err == nil || strings.Count(err.Error(), "is its kernel module loaded?") != 2 {
		t.Errorf("error %v", err)
	}
}

// TestReuseTimeWait changes the default of Linux, and names what it may not change.
func TestReuseTimeWait(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "proc/sys/net/ipv4/tcp_tw_reuse")
	testbed.Check(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testbed.Check(t, os.WriteFile(path, []byte("2\n"), 0o644))
	err := reuseTimeWaitBelow(root)
	if after, _ := os.ReadFile(path); err != nil || string(after) != "1" {
		t.Errorf("%q after it, want 1; %v", after, err)
	}
	if err := reuseTimeWaitBelow(t.TempDir()); err == nil || !strings.Contains(err.Error(), "net.ipv4.tcp_tw_reuse") {
		t.Errorf("without the setting: %v, want an error that names it", err)
	}
}

// TestDisableEarlyDemux changes what older kernels do, and what is not so already.
func TestDisableEarlyDemux(t *testing.T) {
	for _, c := range []struct{ release, before, after string }{
		{"6.1.0-48-cloud-amd64", "1\n", "0"}, {"5.14.0-503.el9.x86_64", "1\n", "0"}, {"4.19.0", "0\n", "0\n"},
		{"6.6.0", "1\n", "1\n"}, {"6.18.44", "1\n", "1\n"},
	} {
		root := t.TempDir()
		path := filepath.Join(root, "proc/sys/net/ipv4/tcp_early_demux")
		testbed.Check(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testbed.Check(t, os.WriteFile(path, []byte(c.before), 0o644))
		err := disableEarlyDemuxBelow(root, c.release)
		if after, _ := os.ReadFile(path); err != nil || string(after) != c.after {
			t.Errorf("Linux %s, %q before: %q after it, want %q; %v", c.release, c.before, after, c.after, err)
		}
	}
	if err := disableEarlyDemuxBelow(t.TempDir(), "5.15.0"); err == nil ||
		!strings.Contains(err.Error(), "net.ipv4.tcp_early_demux") {
		t.Errorf("without the setting: %v, want an error that names it", err)
	}
}
