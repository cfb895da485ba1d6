package tracking

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// timeouts are in seconds, by the ends of their names after nf_conntrack_. Clients ask some 30,000 DNS questions a
// second, each from a new port. Each has two entries, so the usual table of 262,144 would be full after four seconds.
var timeouts = map[string]int{
	"tcp_timeout_time_wait": 5, "tcp_timeout_close": 5, "tcp_timeout_close_wait": 5, "tcp_timeout_fin_wait": 5,
	"tcp_timeout_last_ack": 5, "udp_timeout": 2, "udp_timeout_stream": 5,
}

// Shorten makes a host forget ended connections and idle UDP flows within seconds.
func Shorten(h *testbed.Host) error {
	for _, name := range slices.Sorted(maps.Keys(timeouts)) {
		if err := h.Sysctl("net.netfilter.nf_conntrack_"+name, strconv.Itoa(timeouts[name])); err != nil {
			return err
		}
	}
	return nil
}

// ErrInvalid is the error of a measurement that says more about conntrack than about what was measured.
var ErrInvalid = errors.New("INVALID: conntrack decided the figures")

// nearlyFull is the share of the table, in per cent, from which on it counts as full: it may have been full before.
const nearlyFull = 90

// Table is the state of the table of one host.
type Table struct {
	Entries, Most int            // Most is the limit of the machine
	Lost          map[string]int // packets and entries that the kernel dropped since the host exists, by its own names
}

// lost are the counters of conntrack(8) that say that the kernel dropped something.
var lost = []string{"drop", "early_drop", "insert_failed"}

// Read returns the state of a host's table.
func Read(ctx context.Context, h *testbed.Host) (t Table, err error) {
	out, err := h.Command(ctx, "conntrack", "-S").Output()
	if err != nil {
		return t, fmt.Errorf("read conntrack's counters: %w", err)
	}
	if t.Lost, err = parse(string(out)); err != nil {
		return t, err
	}
	err = h.Do(func() (err error) {
		if t.Entries, err = number("count"); err == nil {
			t.Most, err = number("max")
		}
		return err
	})
	return t, err
}

func number(name string) (int, error) {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_" + name)
	if err != nil {
		return 0, fmt.Errorf("read conntrack's table: %w", err)
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// parse adds up what "conntrack -S" says of each processor.
func parse(text string) (map[string]int, error) {
	sums := make(map[string]int)
	for field := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(field, "=")
		if !slices.Contains(lost, name) {
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			return nil, fmt.Errorf("read conntrack's counters: %q: %w", field, err)
		}
		sums[name] += n
	}
	if len(sums) < len(lost) {
		return nil, fmt.Errorf("read conntrack's counters: %q is not whole", text)
	}
	return sums, nil
}

// Since returns ErrInvalid, with the reason, if the table is nearly full, or the kernel has dropped something since
// another state of it.
func (t Table) Since(before Table) error {
	var why []string
	if t.Entries*100 >= t.Most*nearlyFull {
		why = append(why, fmt.Sprintf("the table has %d of at most %d entries", t.Entries, t.Most))
	}
	for _, name := range lost {
		if n := t.Lost[name] - before.Lost[name]; n > 0 {
			why = append(why, fmt.Sprintf("%s %d", name, n))
		}
	}
	if len(why) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrInvalid, strings.Join(why, ", "))
}
