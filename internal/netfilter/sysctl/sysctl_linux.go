package sysctl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
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
)

func (c Conntrack) apply() ([]string, error) { return c.applyBelow("/") }

func (c Conntrack) applyBelow(root string) (warnings []string, err error) {
	limit := 0
	if c.MaxPerCore > 0 {
		limit = max(int(c.Min), min(int(c.MaxPerCore)*cpus(root), maxScaled))
		if err := raise(filepath.Join(root, hashSizeFile), limit/4); err != nil {
			warnings = append(warnings, fmt.Sprintf("the hash of conntrack stays smaller than %d buckets: %v", limit/4,
				err))
		}
	}
	set := func(on bool) int {
		if on {
			return 1
		}
		return 0
	}
	seconds := func(t time.Duration) int { return int((t + time.Second - 1) / time.Second) }
	for _, x := range []struct {
		name  string
		value int // 0 leaves it as it is
	}{
		{"nf_conntrack_max", limit},
		{"nf_conntrack_tcp_timeout_established", seconds(c.TCPEstablished)},
		{"nf_conntrack_tcp_timeout_close_wait", seconds(c.TCPCloseWait)},
		{"nf_conntrack_udp_timeout", seconds(c.UDP)},
		{"nf_conntrack_udp_timeout_stream", seconds(c.UDPStream)},
		{"nf_conntrack_tcp_be_liberal", set(c.BeLiberal)},
		{"nf_conntrack_acct", set(c.Accounting)},
		{"nf_conntrack_timestamp", set(c.Accounting)},
	} {
		if x.value != 0 {
			err = errors.Join(err, netfilter.SetSysctl(root, "netfilter/"+x.name, x.value))
		}
	}
	return warnings, err
}

func usage() (entries, limit int, err error) {
	if entries, err = netfilter.ReadNumber("/" + sysctlDir + "/nf_conntrack_count"); err != nil {
		return 0, 0, fmt.Errorf("read number of conntrack entries: %w", err)
	}
	if limit, err = netfilter.ReadNumber("/" + sysctlDir + "/nf_conntrack_max"); err != nil {
		return 0, 0, fmt.Errorf("read limit of conntrack entries: %w", err)
	}
	return entries, limit, nil
}

func disableEarlyDemux() error { return disableEarlyDemuxBelow("/", netfilter.Release()) }

// disableEarlyDemuxBelow leaves kernels alone that look again, which are those with the commit
// "netfilter: nf_nat: undo erroneous tcp edemux lookup after port clash".
func disableEarlyDemuxBelow(root, release string) error {
	if netfilter.AtLeast(release, 6, 6) {
		return nil
	}
	return netfilter.SetSysctl(root, "ipv4/tcp_early_demux", 0)
}

func reuseTimeWait() error { return reuseTimeWaitBelow("/") }

func reuseTimeWaitBelow(root string) error { return netfilter.SetSysctl(root, "ipv4/tcp_tw_reuse", 1) }

// raise writes a number to a file that holds a smaller one.
func raise(path string, value int) error {
	if have, err := netfilter.ReadNumber(path); err != nil || have >= value {
		return err
	}
	return netfilter.WriteNumber(path, value)
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
		var first, last int
		switch found, _ := fmt.Sscanf(part, "%d-%d", &first, &last); found {
		case 0:
			return runtime.NumCPU()
		case 1:
			last = first
		}
		n += last - first + 1
	}
	return n
}
