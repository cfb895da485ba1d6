package redirect

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// TestSlowReaders changes why a host may not ask, while its packets are between the rule
// that looks for other hosts and the one that looks at sources, where long chains of
// another's keep them for as long as several changes of sets take. So what needs one
// packet in 100,000 otherwise, happens to many: they have read a set before its change
// and read the next one after it.
func TestSlowReaders(t *testing.T) {
	eachSetVariant(t, func(t *testing.T, v variant) {
		l := newLab(t)
		testSlowReaders(t, l, v, func() { feed(t, v.slowly(), v.command+"-restore", "--noflush") })
		first := output(t, v.command, "-t", "mangle", "-S", chainPrefix+chainPrerouting)
		if !strings.Contains(first, " -j SLOW\n") {
			t.Errorf("nothing slowed packets down:\n%s", first)
		}
	})
}

func testSlowReaders(t *testing.T, l *lab, v variant, slow func()) {
	f := udp(netip.AddrPortFrom(vip(v.ipv6, 1), 53))
	open := Plan{TCPPort: 1, Ported: []Ported{{f, serveUDP(t, ":0")}}}
	outside, restricted := open, open
	outside.DropOutside = []lb.Frontend{f}
	restricted.Restricted = []Restricted{{Frontend: f}}

	s := v.steerer()
	syncPlan(t, s, outside)
	slow()
	// Netfilter takes the first datagram that gets through, and all after it, for one flow.
	c, err := l.Client.Dial(t.Context(), "udp", f.Addr.String())
	check(t, err)
	defer c.Close()
	b := make([]byte, 100)
	asking := testbed.Repeat(t, 1, func() error {
		if _, err := c.Write([]byte("hello")); err != nil {
			return err
		}
		c.SetReadDeadline(time.Now().Add(time.Millisecond))
		if n, err := c.Read(b); err == nil {
			return fmt.Errorf("%s may not ask %s, and is answered: %q", c.LocalAddr(), f, b[:n])
		}
		return nil
	})
	changes := 0
	for deadline := time.Now().Add(patience); changes < 100 && time.Now().Before(deadline); changes++ {
		syncPlan(t, s, restricted)
		syncPlan(t, s, outside)
	}
	asking.Stop()
	if asked := asking.Done(); asked < int64(changes) {
		t.Errorf("the host asked %d times while there were %d changes", asked, changes)
	}
	syncPlan(t, s, open) // the host could have been answered
	l.expect("at last", "host", f, "answered")
}

// slowly returns the input of iptables-restore that puts rules which take a packet a
// millisecond or two to read between the two of SLUICE-PREROUTING: three chains, each
// rule of which leads to the next.
func (v variant) slowly() string {
	rules, source := 80, "192.0.2.1"
	if v.ipv6 {
		source = "2001:db8::1"
	}
	if v.name == "nft IPv6" {
		rules = 45 // nf_tables compares long addresses slowly
	}
	return "*mangle\n:SLOW - [0:0]\n:SLOWER - [0:0]\n:SLOWEST - [0:0]\n-I " + chainPrefix + chainPrerouting +
		" 2 -j SLOW\n" +
		strings.Repeat("-A SLOW -j SLOWER\n-A SLOWER -j SLOWEST\n-A SLOWEST -s "+source+" -j DROP\n", rules) + "COMMIT\n"
}
