package lab

import (
	"os"
	"strconv"
	"strings"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// Dropped returns how many datagrams the kernel has dropped for want of room since it started: at sockets of these
// hosts (RcvbufErrors and SndbufErrors of /proc/net/snmp), and in the queues of this machine's processors (the second
// word of /proc/net/softnet_stat).
func Dropped(hosts ...*testbed.Host) (n int64, err error) {
	for _, h := range hosts {
		for _, name := range []string{"RcvbufErrors", "SndbufErrors"} {
			count, err := h.Counter("Udp", name)
			if err != nil {
				return 0, err
			}
			n += count
		}
	}
	text, err := os.ReadFile("/proc/net/softnet_stat")
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 1 {
			count, _ := strconv.ParseInt(words[1], 16, 64)
			n += count
		}
	}
	return n, err
}
