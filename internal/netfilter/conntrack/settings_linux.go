package conntrack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter"
)

// maxScaled bounds what MaxPerCore comes to on machines of hundreds of CPUs, as
// in newer versions of kube-proxy.
const maxScaled = 1 << 20

// Where the kernel shows its settings, below a root that tests replace.
const (
	sysctlDir    = "proc/sys/net/netfilter"
	hashSizeFile = "sys/module/nf_conntrack/parameters/hashsize"
	onlineFile   = "sys/devices/system/cpu/online"
	demuxFile    = "proc/sys/net/ipv4/tcp_early_demux"
)

func (c Settings) apply() ([]string, error) { return c.applyBelow("/") }

func (c Settings) applyBelow(root string) (warnings []string, err error) {
	var errs []error
	set := func(name string, value int) {
		if err := setInt(filepath.Join(root, sysctlDir, name), value); err != nil {
			errs = append(errs, fmt.Errorf("set sysctl net.netfilter.%s to %d: %w%s", name, value, err,
				sysctlHint(err)))
		}
	}
	if c.MaxPerCore > 0 {
		limit := c.limit(cpus(root))
		set("nf_conntrack_max", limit)
		if err := raiseInt(filepath.Join(root, hashSizeFile), limit/4); err != nil {
			warnings = append(warnings, fmt.Sprintf("the hash of conntrack stays smaller than %d buckets: %v", limit/4,
				err))
		}
	}
	for _, t := range []struct {
		name string
		time time.Duration
	}{
		{"nf_conntrack_tcp_timeout_established", c.TCPEstablished},
		{"nf_conntrack_tcp_timeout_close_wait", c.TCPCloseWait},
		{"nf_conntrack_udp_timeout", c.UDP},
		{"nf_conntrack_udp_timeout_stream", c.UDPStream},
	} {
		if t.time > 0 {
			set(t.name, int((t.time+time.Second-1)/time.Second))
		}
	}
	if c.BeLiberal {
		set("nf_conntrack_tcp_be_liberal", 1)
	}
	return warnings, errors.Join(errs...)
}

func disableEarlyDemux() error { return disableEarlyDemuxBelow("/", netfilter.Release()) }

// disableEarlyDemuxBelow leaves kernels alone that look again, which are those with the commit
// "netfilter: nf_nat: undo erroneous tcp edemux lookup after port clash".
func disableEarlyDemuxBelow(root, release string) error {
	if netfilter.AtLeast(release, 6, 6) {
		return nil
	}
	path := filepath.Join(root, demuxFile)
	if b, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(b)) == "0" {
		return nil
	}
	if err := writeInt(path, 0); err != nil {
		return fmt.Errorf("set sysctl net.ipv4.tcp_early_demux to 0: %w%s", err, sysctlHint(err))
	}
	return nil
}

// sysctlHint says what to do about a setting that is not ours to change.
func sysctlHint(err error) string {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return ": set it on the host, or run in the host's network namespace with /proc/sys mounted writable"
	}
	return ""
}

// limit returns the most entries for a number of CPUs.
func (c Settings) limit(cpus int) int {
	return max(int(c.Min), min(int(c.MaxPerCore)*cpus, maxScaled))
}

// cpus returns the number of CPUs that are online. What the runtime says is how
// many this process may use, which in a container is often fewer.
func cpus(root string) int {
	b, err := os.ReadFile(filepath.Join(root, onlineFile))
	if err != nil {
		return runtime.NumCPU()
	}
	n := 0 // "0-3,8", see cputopology.rst of the kernel
	for part := range strings.SplitSeq(strings.TrimSpace(string(b)), ",") {
		first, last, ok := strings.Cut(part, "-")
		if !ok {
			last = first
		}
		a, err1 := strconv.Atoi(first)
		z, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || z < a {
			return runtime.NumCPU()
		}
		n += z - a + 1
	}
	return n
}

// setInt writes a number to a file that holds another.
func setInt(path string, value int) error {
	have, err := readInt(path)
	if err != nil || have == value {
		return err
	}
	return writeInt(path, value)
}

// raiseInt writes a number to a file that holds a smaller one.
func raiseInt(path string, value int) error {
	have, err := readInt(path)
	if err != nil || have >= value {
		return err
	}
	return writeInt(path, value)
}

func writeInt(path string, value int) error {
	return os.WriteFile(path, strconv.AppendInt(nil, int64(value), 10), 0o644)
}

func readInt(path string) (int, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%w: is the kernel module nf_conntrack loaded?", err)
	} else if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}
