package testbed

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Counter returns one of the host's packet counters, as "Udp", "RcvbufErrors" or "TcpExt", "TCPSynRetrans". They are
// those of /proc/net/snmp and /proc/net/netstat.
func (h *Host) Counter(group, name string) (n int64, err error) {
	err = h.Do(func() error {
		var text []byte
		for _, file := range []string{"snmp", "netstat"} {
			more, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil {
				return err
			}
			text = append(text, more...)
		}
		n, err = FindCounter(string(text), group, name)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read counter %s of host %s: %w", name, h.Name, err)
	}
	return n, nil
}

// FindCounter finds a counter in the text of such a file: a line of a group's names, and one of their values.
func FindCounter(text, group, name string) (int64, error) {
	var names []string
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] != group+":" {
			continue
		}
		if names == nil {
			names = words
			continue
		}
		if i := slices.Index(names, name); i >= 0 && i < len(words) {
			return strconv.ParseInt(words[i], 10, 64)
		}
	}
	return 0, fmt.Errorf("group %s has no counter %s", group, name)
}
