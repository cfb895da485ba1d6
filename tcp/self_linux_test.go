package tcp

import (
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestSelfConnect: a backend of this host that is down has an ephemeral port, which the kernel may give to the very
// socket that connects to it. TCP's simultaneous open succeeds then, and the client would talk to itself.
func TestSelfConnect(t *testing.T) {
	if !inOwnProcess(t, &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
	}) {
		return
	}
	lo, err := netlink.LinkByName("lo")
	check(t, err)
	check(t, netlink.LinkSetUp(lo))
	// With 200 ports it takes 100 dials (the kernel tries the even ones first), and not 14,000.
	check(t, os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40199"), 0))
	p := startProxy(t, nil, netip.MustParseAddrPort("127.0.0.1:40100"))
	const clients = 80
	for range clients {
		c, err := net.DialTimeout("tcp", p.addr.String(), patience)
		if err != nil {
			continue // reset already
		}
		if _, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n"); err == nil { // it may be reset before that
			if n, err := c.Read(make([]byte, 100)); n > 0 || !isReset(err) {
				t.Errorf("the client of a backend that is down reads %d bytes, %v; want a reset", n, err)
			}
		}
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
	if s := p.Stats(); s.Established != 0 || s.DialGaveUp != clients {
		t.Errorf("stats %+v, want %d clients reset", s, clients)
	}
}
