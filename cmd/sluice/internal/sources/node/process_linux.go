package node

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/netfilter"
)

// filesPerLoop is the file descriptors of one event loop: its poller, its wake-up, and a
// listener in each family.
const filesPerLoop = 4

// enoughFiles is the least limit that an error should name: one that leaves some file
// descriptors for connections and flows, on a host of a few Services.
func enoughFiles(loops int) int { return 48 + filesPerLoop*loops }

// FileLimit returns how many file descriptors connections, flows and sockets of Services may hold together: the
// process's limit (RLIMIT_NOFILE, which Go has raised to its hard value at start) less what
// is open now, the loops among it, and a reserve for the rest of the program, such as
// listeners, iptables and HTTP requests. 0: no limit is known.
func FileLimit(loops int) (int64, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read file descriptor limit: %w", err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if errors.Is(err, unix.EMFILE) {
		return 0, fmt.Errorf("the file descriptor limit of %d is exhausted: raise it (ulimit -n) to %d or more",
			limit.Cur, enoughFiles(loops))
	} else if err != nil {
		return 0, fmt.Errorf("count open file descriptors: %w", err)
	}
	most := int64(min(limit.Cur, 1<<30))
	free := most - int64(len(open)) - max(int64(8+filesPerLoop/2*loops), most/8)
	if free < 4 {
		return 0, fmt.Errorf("the file descriptor limit of %d leaves none for connections: "+
			"raise it (ulimit -n) to %d or more", most, enoughFiles(loops))
	}
	return free, nil
}

// FlowLimit returns how many UDP flows there may be together: half of the ephemeral ports of this network namespace
// that are not reserved (ip_local_port_range, ip(7)), so that its other programs always find one.
func FlowLimit() (int, error) {
	const folder = "/proc/sys/net/ipv4/"
	ports, err := os.ReadFile(folder + "ip_local_port_range")
	if err != nil {
		return 0, fmt.Errorf("read ephemeral ports: %w", err)
	}
	reserved, err := os.ReadFile(folder + "ip_local_reserved_ports")
	if err != nil {
		return 0, fmt.Errorf("read reserved ports: %w", err)
	}
	n, err := ephemeralPorts(string(ports), string(reserved))
	if err != nil {
		return 0, err
	}
	return max(n/2, 1), nil
}

// ephemeralPorts counts the ports of a range as ip_local_port_range has it, "32768\t60999", that are not in a list as
// ip_local_reserved_ports has it, "40000-40009,50000".
func ephemeralPorts(ports, reserved string) (int, error) {
	var low, high int
	if _, err := fmt.Sscan(ports, &low, &high); err != nil {
		return 0, fmt.Errorf("parse ephemeral ports %q: %w", ports, err)
	}
	n := high - low + 1
	for _, part := range strings.FieldsFunc(reserved, func(r rune) bool { return r == ',' || r == '\n' }) {
		first, last, ok := strings.Cut(part, "-")
		if !ok {
			last = first
		}
		from, err := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err = errors.Join(err, err2); err != nil {
			return 0, fmt.Errorf("parse reserved ports %q: %w", reserved, err)
		}
		n -= max(0, min(to, high)-max(from, low)+1)
	}
	return n, nil
}

// Forwards reports whether the kernel forwards packets of each family, IPv4 and IPv6 (ip-sysctl.rst of the kernel).
func Forwards() (out [2]bool) {
	for i, name := range [...]string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		n, err := netfilter.ReadNumber("/proc/sys/net/" + name)
		out[i] = err == nil && n != 0
	}
	return out
}

// SpareProcessor makes Go use a processor more than the loops take, from the start, since more
// than loops profit. Each loop keeps one, asleep or not; were there no other, the runtime's
// monitor would take one away whenever its loop sleeps for 20 us, and a lone client would wait
// for its return three times; and a change, or the collector, would make a loop wait for up to
// 10 ms, where the kernel divides the core more finely (bench/results/profiles.md). GOMAXPROCS
// in the environment takes precedence.
func SpareProcessor(loops int) {
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) <= loops {
		runtime.GOMAXPROCS(loops + 1)
	}
}

// NewLoops starts n event loops. The caller closes them.
func NewLoops(n int) (*eventloop.Group, error) {
	loops, err := eventloop.NewGroup(n)
	if errors.Is(err, unix.EMFILE) {
		return nil, fmt.Errorf("%w: raise the file descriptor limit (ulimit -n) to %d or more", err, enoughFiles(n))
	}
	return loops, err
}

// Listenable returns addresses as node ports listen on them: a socket on all addresses
// knows which one a datagram was sent to.
func Listenable(addrs, _ []netip.Addr) []netip.Addr { return addrs }

// SetOOMScoreAdj says how soon the kernel is to end this process when memory runs
// out (proc_pid_oom_score_adj(5)). A lower value than it has needs CAP_SYS_RESOURCE.
func SetOOMScoreAdj(score int) error {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(score)), 0); err != nil {
		return fmt.Errorf("set oom_score_adj to %d: %w", score, err)
	}
	return nil
}
