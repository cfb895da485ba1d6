package sctp

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// The ends are lksctp-tools' own program, which uses one-to-many sockets and checks
// what it receives.
func TestLksctp(t *testing.T) {
	l := only(t, Socket, testbed.Config{Pods: 2}, settings{})
	if _, err := exec.LookPath("sctp_test"); err != nil {
		t.Skipf("NOT TESTED: no lksctp-tools: %v", err)
	}
	l.backends(0, l.Pods...)
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	outs := make([]testbed.Buffer, len(l.Pods))
	for i, pod := range l.Pods {
		server := pod.Command(ctx, "sctp_test", "-H", pod.Addr(l.ipv6).String(), "-P", fmt.Sprint(port), "-l")
		server.Stdout, server.Stderr = &outs[i], &outs[i]
		check(t, server.Start())
		t.Cleanup(func() {
			_ = server.Process.Kill()
			_ = server.Wait() // killed
		})
		testbed.Within(t, patience, "sctp_test listens", func() bool {
			return strings.Contains(outs[i].String(), "Listening") || strings.Contains(outs[i].String(), "listen(")
		})
	}
	for i := range 4 {
		out, err := l.Client.Command(ctx, "sctp_test", "-H", l.Client.Addr(l.ipv6).String(), "-P", fmt.Sprint(6000+i),
			"-h", l.frontend.Addr().String(), "-p", fmt.Sprint(l.frontend.Port()), "-s", "-x", "2", "-c", "4", "-M", "4").CombinedOutput()
		if err != nil {
			t.Errorf("client %d: %v: %s", i, err, out)
		}
	}
	l.eventually("all are over", func(s Stats) bool { return s.Active == 0 && s.Accepted == 4 })
	if s := l.stats(); s.Established != 4 || s.MessagesIn == 0 || s.SendErrors+s.TooLong != 0 {
		t.Errorf("%+v", s)
	}
	for i := range outs {
		if !strings.Contains(outs[i].String(), "recvmsg") {
			t.Errorf("%s got nothing: %s", l.Pods[i], outs[i].String())
		}
	}
}
