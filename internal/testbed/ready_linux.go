package testbed

import (
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// readyTimeout bounds the wait for links. The kernel may hold back a change of
// carrier for 1 s (LINK_WATCH in net/core/link_watch.c).
const readyTimeout = 10 * time.Second

// waitReady waits until all links and addresses are of use. The kernel answers
// before that when they are set up. It updates the carrier, the transmit
// queue, the state of a bridge's port, and the local route of an IPv6 address
// (addrconf_dad_start in net/ipv6/addrconf.c) later, on threads of its own, and
// drops packets until then.
func (tb *Testbed) waitReady() error {
	deadline := time.Now().Add(readyTimeout)
	for _, h := range tb.hosts {
		for {
			ready, err := h.ready()
			if err != nil {
				return err
			}
			if ready {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("wait for host %s: not ready in %v", h.Name, readyTimeout)
			}
			time.Sleep(time.Millisecond) // no event reports an IPv6 local route, or of a transmit queue
		}
	}
	return nil
}

// ready reports whether the host's addresses are local to it and its link carries
// packets.
func (h *Host) ready() (bool, error) {
	local, err := h.addrsReady()
	if err != nil || !local || h.port == nil {
		return local, err
	}
	return h.linkReady()
}

func (h *Host) addrsReady() (bool, error) {
	handle, err := h.netlink()
	if err != nil {
		return false, fmt.Errorf("open netlink on host %s: %w", h.Name, err)
	}
	defer handle.Close()
	for _, a := range h.ns.addrs {
		routes, err := handle.RouteGet(a.AsSlice())
		if err != nil {
			return false, fmt.Errorf("look up %s on host %s: %w", a, h.Name, err)
		}
		if len(routes) != 1 || routes[0].Type != unix.RTN_LOCAL {
			return false, nil
		}
	}
	return true, nil
}

// linkReady reports whether a host's eth0, the port that it is plugged into, and
// the bridge behind that carry packets.
func (h *Host) linkReady() (bool, error) {
	ready := true
	check := func(_ *netlink.Handle, l netlink.Link) error {
		ready = ready && l.Attrs().OperState == netlink.OperUp
		return nil
	}
	if err := h.withLink("eth0", check); err != nil {
		return false, err
	}
	if err := h.port.host.withLink(h.port.bridge, check); err != nil {
		return false, err
	}
	state, err := h.port.state()
	return ready && state == portForwarding, err
}

// state returns the port's state, which netlink.Handle does not read either.
func (p *port) state() (state byte, err error) {
	err = p.host.Do(func() error {
		msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
		msg.Index = int32(p.index)
		req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
		req.AddData(msg)
		replies, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
		if err != nil {
			return err
		}
		if len(replies) != 1 {
			return fmt.Errorf("got %d answers about one link", len(replies))
		}
		attr := replies[0][unix.SizeofIfInfomsg:]
		for _, kind := range []uint16{unix.IFLA_LINKINFO, nl.IFLA_INFO_SLAVE_DATA, nl.IFLA_BRPORT_STATE} {
			if attr, err = findAttr(attr, kind); err != nil {
				return err
			}
		}
		state = attr[0]
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("read state of a port of bridge %s: %w", p.bridge, err)
	}
	return state, nil
}

// findAttr returns the value, at least one byte, of an attribute.
func findAttr(b []byte, kind uint16) ([]byte, error) {
	attrs, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil, err
	}
	for _, a := range attrs {
		if a.Attr.Type&^unix.NLA_F_NESTED == kind && len(a.Value) > 0 {
			return a.Value, nil
		}
	}
	return nil, fmt.Errorf("no attribute of type %d", kind)
}
