package conntrack

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter"
)

// sysctlDir is where the kernel shows its settings of conntrack.
const sysctlDir = "/proc/sys/net/netfilter"

// The settings that say how long entries live, by state.
var (
	tcpTimeouts = [...]string{TCPSynSent: "syn_sent", TCPSynRecv: "syn_recv", TCPEstablished: "established",
		TCPFinWait: "fin_wait", TCPCloseWait: "close_wait", TCPLastAck: "last_ack", TCPTimeWait: "time_wait",
		TCPClose: "close", TCPSynSent2: "syn_sent"}
	sctpTimeouts = [...]string{SCTPClosed: "closed", SCTPCookieWait: "cookie_wait", SCTPCookieEchoed: "cookie_echoed",
		SCTPEstablished: "established", SCTPShutdownSent: "shutdown_sent", SCTPShutdownReceived: "shutdown_recd",
		SCTPShutdownAckSent: "shutdown_ack_sent"}
)

func (t *Timeouts) read() (err error) {
	read := func(to *time.Duration, name string) {
		n, err2 := netfilter.ReadNumber(sysctlDir + "/nf_conntrack_" + name)
		if err2 != nil {
			err = errors.Join(err, fmt.Errorf("read timeout %s of conntrack: %w", name, err2))
		}
		*to = time.Duration(n) * time.Second
	}
	for state, name := range tcpTimeouts {
		if name != "" {
			read(&t.tcp[state], "tcp_timeout_"+name)
		}
	}
	for state, name := range sctpTimeouts {
		if name != "" {
			read(&t.sctp[state], "sctp_timeout_"+name)
		}
	}
	read(&t.udp, "udp_timeout")
	read(&t.udpStream, "udp_timeout_stream")
	return err
}
