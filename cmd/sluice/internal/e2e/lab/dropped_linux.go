package lab

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// Dropped returns how many datagrams the kernel has dropped for want of room since it started: at sockets of these
// hosts (RcvbufErrors and SndbufErrors of /proc/net/snmp), and in the queues of this machine's processors (the second
// word of /proc/net/softnet_stat).
func Dropped(hosts ...*testbed.Host) (n int64, err error) {
	for _, h := range hosts {
		err = h.Do(func() error {
			text, err := os.ReadFile("/proc/thread-self/net/snmp")
			var names []string
			for line := range strings.Lines(string(text)) {
				words := strings.Fields(line)
				if words[0] != "Udp:" {
					continue
				}
				if names == nil {
					names = words
					continue
				}
				for _, name := range []string{"RcvbufErrors", "SndbufErrors"} {
					i := slices.Index(names, name)
					if i < 0 {
						return fmt.Errorf("find %s in %q", name, text)
					}
					count, _ := strconv.ParseInt(words[i], 10, 64)
					n += count
				}
			}
			return err
		})
		if err != nil {
			return 0, err
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
