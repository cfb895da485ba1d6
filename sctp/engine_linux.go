package sctp

import (
	"errors"
	"fmt"
	"os"

	"github.com/sluice-lb/sluice/sctp/engine"
	"github.com/sluice-lb/sluice/sctp/kernel"
	"github.com/sluice-lb/sluice/sctp/packet"
	"github.com/sluice-lb/sluice/sctp/socket"
)

// maxShares bounds Holding.Shares.
const maxShares = packet.MaxShards

// newEngine makes an engine. shares is into how many the packet engine divides packets; 0: one for each loop.
func newEngine(kind Engine, config Config, shares int) engine.Engine {
	if kind == Socket {
		return socket.New(config)
	}
	return packet.New(config, shares)
}

// choose selects an engine and says why.
func choose(want Engine) (Engine, string, error) {
	if want == Packet {
		// Not by opening a socket, for which the kernel would load its module.
		if _, err := os.Stat("/proc/net/sctp"); err == nil {
			return Packet, "", errors.New("use raw sockets for SCTP: the kernel has SCTP itself and aborts " +
				"associations that are not its own: use sockets, or unload the module sctp")
		}
		return Packet, "forced", nil
	}
	switch missing := kernel.Missing(); {
	case missing == nil && want == Auto:
		return Socket, "the kernel has SCTP", nil
	case missing == nil:
		return Socket, "forced", nil
	case want == Auto:
		return Packet, fmt.Sprintf("the kernel has no SCTP (%v)", missing), nil
	default:
		return Socket, "", fmt.Errorf("use SCTP sockets: the kernel has no SCTP: %w", missing)
	}
}
