package lab

import (
	"fmt"
	"strings"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// RestartSCTP begins associations, one after the other, from the same port of a client. The next one is to be with
// another endpoint only if that of the one before has gone from the Service.
func (l *Lab) RestartSCTP() {
	l.T.Helper()
	ends := testbed.NewSCTPEnds(l.T)
	for _, pod := range l.Pods[:2] {
		ends.Echo(l.T, pod)
	}
	const port = 3900
	for _, v6 := range []bool{false, true} {
		family := testbed.Family(v6)
		first, second := Backend(l.Pods[0], v6, uint16(ends.EchoPort)), Backend(l.Pods[1], v6, uint16(ends.EchoPort))
		drains := first
		drains.Ready, drains.Terminating = false, true
		s := Simple("sctp"+family, testbed.VIP(v6, 9).String(), uint16(ends.EchoPort), lb.SCTP, first)
		for _, step := range []struct {
			name     string
			backends []lb.Backend
			want     lb.Backend
		}{
			{"only endpoint", []lb.Backend{first}, first},
			{"it drains", []lb.Backend{drains, second}, first},
			{"it has gone", []lb.Backend{second}, second},
		} {
			s.Backends = step.backends
			l.Sync(s)
			l.Reconcile(flows.Kernel, s)
			c, err := ends.OpenFrom(l.Client, port, s.Addresses[0].Addr)
			testbed.Check(l.T, err)
			if err := c.Ask(step.name); err != nil {
				l.T.Errorf("%s, %s: %v", family, step.name, err)
			}
			entry := l.Node.Run(l.T, "conntrack", "-L", "-p", "sctp", "-f", strings.ToLower(family),
				"--sport", fmt.Sprint(port), "-d", s.Addresses[0].Addr.Addr().String())
			if !strings.Contains(entry, "src="+step.want.Addr.Addr().String()+" ") {
				l.T.Errorf("%s, %s: want it with %s, and it is\n%s", family, step.name, step.want.Addr, entry)
			}
			c.Abandon()
		}
	}
}
