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
// the given time, or another error's text. The network may be in capitals.
func (h *Host) Ask(network, address string, within time.Duration) string {
	return h.AskFrom(netip.AddrPort{}, network, address, within)
}

// AskFrom is [Host.Ask] from an address and port of the host. The zero Addr and port 0 are any.
func (h *Host) AskFrom(from netip.AddrPort, network, address string, within time.Duration) string {
	answer, err := h.TryAskFrom(from, network, address, within)
	switch {
	case err == nil:
		return answer
	case IsRefused(err):
		return Refused
	case IsDropped(err):
		return Dropped
	}
	return err.Error()
}

// IsRefused reports whether an error says that a peer, or its host, refused.
func IsRefused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
}

// IsDropped reports whether an error says that nothing came in time.
func IsDropped(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// Who asks a server of [Host.WhoTCP], for at most [Patience].
func (h *Host) Who(address string) (name string, err error) {
	return h.TryAsk("tcp", address, Patience)
}

// TryAsk is [Host.Ask] that returns the error.
func (h *Host) TryAsk(network, address string, within time.Duration) (answer string, err error) {
	return h.TryAskFrom(netip.AddrPort{}, network, address, within)
}

// TryAskFrom is [Host.AskFrom] that returns the error.
func (h *Host) TryAskFrom(from netip.AddrPort, network, address string, within time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	c, err := freed(func() (net.Conn, error) { return h.DialFrom(ctx, from, network, address) })
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	if strings.HasPrefix(strings.ToLower(network), "tcp") {
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
