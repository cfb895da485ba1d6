package udp

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/windows"
)

const hasLoops = false

// wine says whether this is not Windows itself.
var wine = windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil

// openDescriptors returns 0: a process has no list of its handles here.
func openDescriptors(*testing.T) int { return 0 }

// refusing returns an address where no process listens. (Under wine a connected socket, which
// refuses on Linux, does not.)
func refusing(t *testing.T, at string) netip.AddrPort {
	t.Helper()
	b := listenUDP(t, at)
	_ = b.Close()
	return b.addr
}
