package testbed

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"
)

// What [Host.Ask] returns where there is no answer.
const (
	Refused = "refused" // by a reset or an ICMP error
	Dropped = "dropped" // nothing came in time
)

// Ask connects from inside the host to a numeric address and returns what the server
// sends until the end of its data, without surrounding blanks. By UDP it sends a datagram
// and returns the answer to it. Where there is none it returns [Refused], [Dropped] after
// the given time, or another error's text.
func (h *Host) Ask(network, address string, within time.Duration) string {
	return h.AskFrom(netip.Addr{}, network, address, within)
}

// AskFrom is [Host.Ask] from an address of the host, unless it is the zero Addr.
func (h *Host) AskFrom(from netip.Addr, network, address string, within time.Duration) string {
	answer, err := h.tryAsk(from, network, address, within)
	var timeout net.Error
	switch {
	case err == nil:
		return answer
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return Refused
	case errors.As(err, &timeout) && timeout.Timeout():
		return Dropped
	}
	return err.Error()
}

// TryAsk is [Host.Ask] that returns the error.
func (h *Host) TryAsk(network, address string, within time.Duration) (answer string, err error) {
	return h.tryAsk(netip.Addr{}, network, address, within)
}

func (h *Host) tryAsk(from netip.Addr, network, address string, within time.Duration) (answer string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	c, err := h.dial(ctx, from, network, address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	if strings.HasPrefix(network, "tcp") {
		b, err := io.ReadAll(c)
		return strings.TrimSpace(string(b)), err
	}
	// On the node itself EPERM is what becomes of a datagram that OUTPUT rejects or
	// drops; only the former leaves an ICMP error to be read.
	if _, err := c.Write([]byte("?")); err != nil && !errors.Is(err, syscall.EPERM) {
		return "", err
	}
	buf := make([]byte, 65535)
	n, err := c.Read(buf)
	return strings.TrimSpace(string(buf[:n])), err
}
