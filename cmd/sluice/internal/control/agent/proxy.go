package agent

import (
	"net/netip"
	"slices"

	"go.uber.org/zap"
)

// ProxyPorts opens and closes proxy ports of TCP, each of which serves all frontends that are steered there
// (tcp.Server).
type ProxyPorts interface {
	// ListenSteered opens one; port 0 lets the kernel choose.
	ListenSteered(netip.AddrPort) (netip.AddrPort, error)
	Unlisten(netip.AddrPort)
	// Steered returns those that are open, in no order.
	Steered() []netip.AddrPort
}

// proxies returns where a proxy port of TCP listens: at an address of each family that is steered.
func (c *Config) proxies(port uint16) (out []netip.AddrPort) {
	for i := range c.Families {
		if f := &c.Families[i]; f.Steer != nil {
			out = append(out, netip.AddrPortFrom(f.Bind, port))
		}
	}
	return out
}

// proxied reports whether the proxy port of TCP is where this process is to listen.
func (a *Agent) proxied() bool {
	open := a.Proxy.Steered()
	missing := func(at netip.AddrPort) bool { return !slices.Contains(open, at) }
	return a.Ports.Contains(a.tcpPort) && !slices.ContainsFunc(a.proxies(a.tcpPort), missing)
}

// openProxy opens the proxy port of TCP, the same one in each family that is steered: before, to which rules lead
// already, or else any of Ports.
func (a *Agent) openProxy(before uint16) error {
	bind := func(port uint16) (err error) {
		var got netip.AddrPort
		var open []netip.AddrPort
		for _, at := range a.proxies(0) {
			if got, err = a.Proxy.ListenSteered(netip.AddrPortFrom(at.Addr(), port)); err != nil {
				for _, at := range open {
					a.Proxy.Unlisten(at)
				}
				return err
			}
			open, port = append(open, got), got.Port()
		}
		a.tcpPort = got.Port()
		return nil
	}
	if before != 0 && a.Ports.Contains(before) && bind(before) == nil {
		return nil
	}
	var err error
	for range 10 { // the port that the kernel chose for one family may be taken in the other
		if _, err = a.Ports.Claim(bind); err == nil || a.Ports.Size() > 0 {
			break
		}
	}
	return err
}

// keepProxy keeps the proxy port of TCP that was taken over, unless this process is to listen elsewhere: then there is
// another, and the old one stays open for what is steered there until the rules are written.
func (a *Agent) keepProxy() {
	if a.proxied() {
		return
	}
	if err := a.openProxy(a.tcpPort); err != nil {
		a.Log.Error("the TCP proxy port stays where it was", zap.Error(err))
	}
}

// retire closes the proxy ports of TCP where nothing is steered any more.
func (a *Agent) retire() {
	if !a.proxied() {
		return // it stays where it was
	}
	needed := a.proxies(a.tcpPort)
	for _, at := range a.Proxy.Steered() {
		if !slices.Contains(needed, at) {
			a.Proxy.Unlisten(at)
		}
	}
}
