package lab

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-lb/sluice/internal/mmsg"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// Sources are addresses that HaveSources gives to a host.
var Sources = netip.MustParsePrefix("10.128.0.0/9")

// HaveSources routes Sources to a host, which may send from each of them.
func (l *Lab) HaveSources(h *testbed.Host) {
	l.T.Helper()
	h.Run(l.T, "ip", "route", "replace", "local", Sources.String(), "dev", "lo")
	l.Node.Run(l.T, "ip", "route", "replace", Sources.String(), "via", h.Addr4.String())
}

// Flood sends datagrams from 100,000 sources to addresses in turn, some 60,000 a second, until stop is called. With
// more sources the kernel's conntrack table would be full, which is not what is tested. The host's route to the
// sources stays.
func (l *Lab) Flood(from *testbed.Host, to ...netip.AddrPort) (stop func()) {
	t := l.T
	l.HaveSources(from)
	socket, err := from.ListenPacket(t.Context(), "udp4", "0.0.0.0:0")
	testbed.Check(t, err)
	conn := socket.(*net.UDPConn)
	ctx, cancel := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	sending.Go(func() {
		const burst, sources = 300, 100_000
		source := Sources.Addr().As4()
		first := binary.BigEndian.Uint32(source[:])
		var control mmsg.ControlBuffer
		pace := time.NewTicker(5 * time.Millisecond)
		defer pace.Stop()
		for n := uint32(0); ; n++ {
			if n%burst == 0 {
				select {
				case <-ctx.Done():
					return
				case <-pace.C:
				}
			}
			binary.BigEndian.PutUint32(source[:], first+n%sources)
			length := mmsg.PutLocalAddr(control[:], netip.AddrFrom4(source), 0)
			// What is lost is of no use.
			_, _, _ = conn.WriteMsgUDPAddrPort([]byte("?"), control[:length], to[int(n)%len(to)])
		}
	})
	return func() {
		cancel()
		sending.Wait()
		_ = conn.Close()
	}
}
