package sctp

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// tsctp is usrsctp's program for throughput, client and server in one.
const tsctp = "/usr/lib/usrsctp/tsctp"

// Associations of usrsctp, a stack that is not pion's, pass as well: many at once,
// with messages that fit into a packet and those that do not.
func TestUsrsctp(t *testing.T) {
	l := only(t, Packet, testbed.Config{Pods: 2, Clients: 2}, settings{})
	if _, err := os.Stat(tsctp); err != nil {
		testbed.Missing(t, err.Error())
	}
	l.backends(0, l.Pods...)
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	for _, pod := range l.Pods {
		log := &testbed.Buffer{Limit: 1 << 16} // it prints thousands of lines
		command := pod.Command(ctx, tsctp, "-E", "0", "-p", fmt.Sprint(port), "-L", pod.Addr(l.ipv6).String())
		command.Stdout, command.Stderr = log, log
		server, err := command.Launch()
		check(t, err)
		t.Cleanup(func() { server.Stop(syscall.SIGKILL) })
		// It listens right after it is bound, of which the kernel shows nothing. Before, its stack refuses.
		testbed.Within(t, patience, "the server is bound", func() bool {
			return strings.Contains(log.String(), fmt.Sprintf("bound port:%d", port))
		})
	}
	const messages = 2000
	total := uint64(0)
	for i, size := range []int{100, 8000} {
		c := l.Clients[i]
		out, err := c.Command(ctx, tsctp, "-E", "0", "-U", "0", "-p", fmt.Sprint(l.frontend.Port()), "-n", fmt.Sprint(messages),
			"-l", fmt.Sprint(size), "-L", c.Addr(l.ipv6).String(), l.frontend.Addr().String()).CombinedOutput()
		// It prints thousands of lines, among them the count of what it has sent again, which is no error.
		if sent := fmt.Sprintf("Sending of %d messages of length %d took", messages, size); err != nil || !strings.Contains(string(out), sent) {
			t.Errorf("%s: %v: it did not say %q: %s", c, err, sent, out[max(0, len(out)-2000):])
		}
		total += uint64(messages * size)
	}
	l.eventually("both are over", func(s Stats) bool { return s.Active == 0 })
	s := l.stats()
	if s.Established != 2 || s.Completed != 2 || s.BytesIn < total || s.BadTag+s.BadChecksum+s.Malformed+s.Unexpected != 0 {
		t.Errorf("%d bytes were sent; %+v", total, s)
	}
}
