package testbed

import (
	"fmt"
	"net/netip"
)

// build makes everything that cfg asks for. What it has made when it fails is
// freed by Close.
func (tb *Testbed) build(cfg Config) error {
	router, err := tb.addHost("router")
	if err != nil {
		return err
	}
	tb.Router = router
	router.Addr4, router.Addr6 = lanAddrs(routerSuffix)
	if err := router.prepare(endSystem); err != nil {
		return err
	}
	lan, err := router.addBridge("lan0", router.Addr4, router.Addr6)
	if err != nil {
		return err
	}
	defer lan.close()

	if cfg.Here {
		err = tb.addHere()
	} else {
		tb.Node, err = tb.addHost("node")
	}
	if err != nil {
		return err
	}
	if err := tb.Node.join(lan, nodeSuffix, router); err != nil {
		return err
	}
	if tb.Pods, err = tb.addPods(tb.Node, "pod", 1, count(cfg.Pods, 3)); err != nil {
		return err
	}
	if cfg.RemotePods > 0 {
		if tb.RemoteNode, err = tb.addHost("remote-node"); err != nil {
			return err
		}
		if err := tb.RemoteNode.join(lan, remoteSuffix, tb.Node); err != nil {
			return err
		}
		if tb.RemotePods, err = tb.addPods(tb.RemoteNode, "remote-pod", 2, cfg.RemotePods); err != nil {
			return err
		}
		if err := tb.Node.routePods(2, tb.RemoteNode); err != nil {
			return err
		}
		if err := tb.RemoteNode.routePods(1, tb.Node); err != nil {
			return err
		}
	}
	for i := range count(cfg.Clients, 1) {
		c, err := tb.addClient(lan, i)
		if err != nil {
			return err
		}
		tb.Clients = append(tb.Clients, c)
	}
	if len(tb.Clients) > 0 {
		tb.Client = tb.Clients[0]
	}
	if err := tb.introduce(); err != nil {
		return err
	}
	return tb.waitReady()
}

// join makes a host a node of the network, which forwards, with its default route to gateway. Only the node itself has
// second addresses.
func (h *Host) join(lan *bridge, suffix int, gateway *Host) error {
	h.Addr4, h.Addr6 = lanAddrs(suffix)
	if err := h.prepare(forwarder); err != nil {
		return err
	}
	if err := lan.plug(h); err != nil {
		return err
	}
	if suffix == nodeSuffix {
		h.Alt4, h.Alt6 = lanAddrs(altSuffix)
		if err := h.addAddrs("eth0", h.Alt4, h.Alt6); err != nil {
			return err
		}
	}
	return h.routeDefault(gateway.Addr4, gateway.Addr6)
}

// addClient adds client number i, which sends to the node whatever is not local.
func (tb *Testbed) addClient(lan *bridge, i int) (*Host, error) {
	h, err := tb.addHost(fmt.Sprintf("client-%d", i))
	if err != nil {
		return nil, err
	}
	h.Addr4, h.Addr6 = lanAddrs(clientSuffix + i)
	if err := h.prepare(endSystem); err != nil {
		return nil, err
	}
	// Load generators open more connections to one address than the default
	// range has ports (28,232).
	if err := h.Sysctl("net.ipv4.ip_local_port_range", "1024 65535"); err != nil {
		return nil, err
	}
	if err := lan.plug(h); err != nil {
		return nil, err
	}
	return h, h.routeDefault(tb.Node.Addr4, tb.Node.Addr6)
}

// addPods adds n pods behind the bridge cni0 of node, on pod network number net. Without pods there is no bridge.
func (tb *Testbed) addPods(node *Host, prefix string, net, n int) ([]*Host, error) {
	if n == 0 {
		return nil, nil
	}
	gateway4, gateway6 := podAddrs(net, gatewaySuffix)
	cni0, err := node.addBridge("cni0", gateway4, gateway6)
	if err != nil {
		return nil, err
	}
	defer cni0.close()
	var pods []*Host
	for i := range n {
		h, err := tb.addHost(fmt.Sprintf("%s-%d", prefix, i))
		if err != nil {
			return nil, err
		}
		h.Addr4, h.Addr6 = podAddrs(net, firstPodSuffix+i)
		if err := h.prepare(endSystem); err != nil {
			return nil, err
		}
		if err := cni0.plug(h); err != nil {
			return nil, err
		}
		if err := h.routeDefault(gateway4, gateway6); err != nil {
			return nil, err
		}
		// Pod and gateway know each other from the start; see introduce.
		if err := cni0.introduce(h); err != nil {
			return nil, err
		}
		pods = append(pods, h)
	}
	return pods, nil
}

// introduce writes the link-layer addresses of the hosts that the switch joins
// into each other's tables. Otherwise a black-holed host would stop answering ARP
// too, and its peers would get EHOSTUNREACH where a firewall gives no answer.
func (tb *Testbed) introduce() error {
	nodes := []*Host{tb.Node}
	if tb.RemoteNode != nil {
		nodes = append(nodes, tb.RemoteNode)
	}
	all := append(append([]*Host{}, nodes...), tb.Clients...)
	for _, node := range nodes {
		if err := node.addNeighbours("eth0", tb.Router); err != nil {
			return err
		}
		if err := tb.Router.addNeighbours("lan0", node); err != nil {
			return err
		}
		for _, peer := range all {
			if peer == node {
				continue
			}
			if err := node.addNeighbours("eth0", peer); err != nil {
				return err
			}
			if err := peer.addNeighbours("eth0", node); err != nil {
				return err
			}
		}
	}
	return nil
}

// routePods routes pod network number net through the node that has it.
func (h *Host) routePods(net int, via *Host) error {
	a4, a6 := podAddrs(net, 0)
	if err := h.route("eth0", netip.PrefixFrom(a4, 24), via.Addr4); err != nil {
		return err
	}
	return h.route("eth0", netip.PrefixFrom(a6, 64), via.Addr6)
}

func (h *Host) routeDefault(via4, via6 netip.Addr) error {
	if err := h.route("eth0", netip.PrefixFrom(netip.IPv4Unspecified(), 0), via4); err != nil {
		return err
	}
	return h.route("eth0", netip.PrefixFrom(netip.IPv6Unspecified(), 0), via6)
}

// addPlain adds a host that has nothing but its loopback interface.
func (tb *Testbed) addPlain(name string) error {
	h, err := tb.addHost(name)
	if err != nil {
		return err
	}
	return h.prepare(endSystem)
}

// addHost makes a host without links and remembers it for Close.
func (tb *Testbed) addHost(name string) (*Host, error) {
	ns, err := newNamespace()
	if err != nil {
		return nil, fmt.Errorf("make host %s: %w", name, err)
	}
	h := &Host{Name: name, tb: tb, ns: ns}
	tb.hosts = append(tb.hosts, h)
	return h, nil
}

// addHere makes the host of this process the node.
func (tb *Testbed) addHere() error {
	ns, err := ownNamespace()
	if err != nil {
		return err
	}
	tb.Node, tb.here = &Host{Name: "node", tb: tb, ns: ns}, true
	tb.hosts = append(tb.hosts, tb.Node)
	return nil
}

// count returns n, or the default for zero, and none for a negative number.
func count(n, standard int) int {
	if n == 0 {
		return standard
	}
	return max(n, 0)
}

// lanAddrs returns the addresses of host n on the network between the nodes and the clients.
func lanAddrs(n int) (netip.Addr, netip.Addr) {
	return netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", n)),
		netip.MustParseAddr(fmt.Sprintf("2001:db8:1::%d", n))
}
