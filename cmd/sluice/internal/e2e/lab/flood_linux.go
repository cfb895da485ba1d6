package lab

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/internal/mmsg"
)

// spoofed are the sources of a flood.
var spoofed = netip.MustParsePrefix("10.128.0.0/9")

// Flood sends datagrams from 100,000 sources to addresses in turn, some 60,000 a second, until stop is called. With
// more sources the kernel's conntrack table would be full, which is not what is tested. The host's route to the
// sources stays.
func (l *Lab) Flood(from *testbed.Host, to ...netip.AddrPort) (stop func()) {
	t := l.T
	run := func(h *testbed.Host, args ...string) {
		if out, err := h.Command(t.Context(), "ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	run(from, "route", "replace", "local", spoofed.String(), "dev", "lo")
	run(l.Node, "route", "replace", spoofed.String(), "via", from.Addr4.String())
	socket, err := from.ListenPacket(t.Context(), "udp4", "0.0.0.0:0")
	testbed.Check(t, err)
	conn := socket.(*net.UDPConn)
	ctx, cancel := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	sending.Go(func() {
		const burst, sources = 300, 100_000
		source := spoofed.Addr().As4()
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
			_, _, _ = conn.WriteMsgUDPAddrPort([]byte("?"), control[:length], to[int(n)%len(to)]) // what is lost is of no use
		}
	})
	return func() {
		cancel()
		sending.Wait()
		_ = conn.Close()
	}
}
