package addresses

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestGuard: a program on all addresses is not reached at one that is held, and one on that address is.
func TestGuard(t *testing.T) {
	testbed.NewHostsT(t, "host")[0].Enter(t)
	for _, ip := range []string{"10.96.0.10", "fd00:96::10"} {
		addr := netip.MustParseAddr(ip)
		set := Set{IPv6: addr.Is6()}
		testbed.Check(t, set.Guard())
		testbed.Check(t, set.Sync(t.Context(), []netip.Addr{addr}))
		ask := func(port string) error {
			c, err := net.DialTimeout("tcp", net.JoinHostPort(ip, port), 2*time.Second)
			if err == nil {
				_ = c.Close()
			}
			return err
		}
		own, err := net.Listen("tcp", net.JoinHostPort(ip, "9001"))
		testbed.Check(t, err)
		for deadline := time.Now().Add(testbed.Patience); ask("9001") != nil; { // until the kernel has the route
			if time.Now().After(deadline) {
				t.Fatalf("a program on %s is not reached there", ip)
			}
		}
		_ = own.Close()
		everywhere, err := net.Listen("tcp", "[::]:9000")
		testbed.Check(t, err)
		if ask("9000") == nil {
			t.Errorf("a program on all addresses is reached at %s", ip)
		}
		_ = everywhere.Close()
		testbed.Check(t, set.Sync(t.Context(), nil))
	}
	testbed.Check(t, Cleanup(t.Context()))
}
