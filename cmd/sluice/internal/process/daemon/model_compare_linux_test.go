package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// mClient is somebody who asks.
type mClient struct {
	name string
	ips  [2]netip.Addr
}

var (
	theNodeItself = mClient{"the node", nodeMain}
	aPodHere      = mClient{"a pod", [2]netip.Addr{netip.MustParseAddr("10.244.1.7"), netip.MustParseAddr("2001:db8:244:1::7")}}
	aHost         = mClient{"a host", [2]netip.Addr{netip.MustParseAddr("198.18.1.7"), netip.MustParseAddr("2001:db8:18:1::7")}} // of rangePool
	aStranger     = mClient{"a stranger", [2]netip.Addr{netip.MustParseAddr("198.18.2.7"), netip.MustParseAddr("2001:db8:18:2::7")}}
)

// localAddrs returns the addresses of the node that matter.
func (r *modelRun) localAddrs() []netip.Addr {
	out := append(nodeMain[:], loopback[:]...)
	for i, has := range r.own {
		if has {
			out = append(out, nodeOwn[i])
		}
	}
	return out
}

// nodePortAddrs returns those of them where node ports are served.
func (r *modelRun) nodePortAddrs() []netip.Addr {
	return slices.DeleteFunc(r.localAddrs(), func(ip netip.Addr) bool {
		return r.listed != nil && !slices.ContainsFunc(r.listed, func(p netip.Prefix) bool { return p.Contains(ip) })
	})
}

// squatted reports whether somebody else has a node port.
func (r *modelRun) squatted(f lb.Frontend) bool {
	return f.Protocol == lb.TCP && !f.Addr.Addr().Is6() && r.squatters[f.Addr.Port()] != nil
}

// compare compares everything with the model.
func (r *modelRun) compare() {
	local := r.localAddrs()
	m := r.expect(local, r.nodePortAddrs())
	k, err := readKernel(slices.Concat(local, endpointPool[0], endpointPool[1]))
	check(r.t, err)
	points := r.points(k)
	var diffs []string
	report := func(format string, args ...any) { diffs = append(diffs, fmt.Sprintf(format, args...)) }
	udpPorts := r.compareSteering(m, k, points, report)
	r.compareSockets(m, k, udpPorts, report)
	r.compareTable(m, points, report)
	r.comparePicks(m, report)
	if len(diffs) == 0 { // who is steered elsewhere need not be waited for
		r.askUDP(m, points, report)
		r.askTCP(m, points, report)
		r.askHealth(m, report)
	}
	if len(diffs) > 0 {
		r.fail(diffs...)
	}
}

// points returns all that anybody could ask for: what the pools can make, and
// whatever the kernel knows besides.
func (r *modelRun) points(k *kernel) []lb.Frontend {
	all := maps.Clone(k.mentioned)
	add := func(ip netip.Addr, port uint16) {
		for _, p := range []lb.Protocol{lb.TCP, lb.UDP} {
			all[lb.Frontend{Protocol: p, Addr: netip.AddrPortFrom(ip, port)}] = true
		}
	}
	for i := range nodeMain {
		for _, ip := range slices.Concat(clusterPool[i], externalPool[i], ingressPool[i], []netip.Addr{nodeMain[i], loopback[i]}) {
			for _, port := range slices.Concat(portPool, nodePortPool) {
				add(ip, port)
			}
		}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b lb.Frontend) int {
		if c := a.Addr.Compare(b.Addr); c != 0 {
			return c
		}
		return int(a.Protocol) - int(b.Protocol)
	})
}

// compareSteering asks the rules of the kernel what becomes of each client at each
// point. It returns the proxy ports of UDP frontends.
func (r *modelRun) compareSteering(m *model, k *kernel, points []lb.Frontend, report func(string, ...any)) map[lb.Frontend]uint16 {
	udpPorts := map[lb.Frontend]uint16{}
	owners := map[netip.AddrPort]lb.Frontend{} // of proxy ports of UDP
	for _, f := range points {
		ip := f.Addr.Addr()
		o := m.owner(f, r.nodePortAddrs())
		for _, c := range []mClient{theNodeItself, aPodHere, aHost, aStranger} {
			src, fromNode := c.ips[index(ip.Is6())], c.name == theNodeItself.name
			if ip.IsLoopback() && !fromNode {
				continue
			}
			if fromNode && slices.Contains(m.local, ip) {
				src = ip
			}
			want := m.fate(o, src, ip)
			if want == held && r.squatted(f) {
				want = untouched
			}
			if want == untouched && m.checks(f, r.nodePortAddrs()) {
				want = held
			}
			if got := k.fate(f.Protocol, src, f.Addr, fromNode); got != want {
				report("kernel: %s, asked by %s (%s): %s, want %s: %s", f, c.name, src, got, want, o)
			}
		}
		// Steered is what has somebody for anybody, even if it is dropped elsewhere.
		port := k.steeredTo(f)
		switch steers := o != nil && o.kind != lb.NodePort && len(o.backendsFor(true))+len(o.backendsFor(false)) > 0; {
		case steers != (port != 0), steers && f.Protocol == lb.TCP && port != r.d.agent.State().TCPPort:
			report("kernel: %s is steered to port %d, which is not expected: %s", f, port, o)
		case steers && f.Protocol == lb.UDP:
			at := netip.AddrPortFrom(unspecified(ip.Is6()), port)
			if other, ok := owners[at]; ok {
				report("kernel: %s and %s have the same proxy port %d", f, other, port)
			}
			owners[at], udpPorts[f] = f, port
		}
		if was, is := r.ports[f], udpPorts[f]; was != 0 && is != 0 && was != is {
			report("kernel: %s was steered to port %d and now is to %d", f, was, is)
		}
	}
	r.ports = udpPorts
	for i, ip := range nodeMain {
		direct := map[lb.Frontend]string{}
		for port := range k.ports { // nothing is left of a proxy port that is no more
			direct[lb.Frontend{Protocol: lb.TCP, Addr: netip.AddrPortFrom(ip, port)}] = untouched
			direct[lb.Frontend{Protocol: lb.UDP, Addr: netip.AddrPortFrom(ip, port)}] = untouched
		}
		direct[lb.Frontend{Protocol: lb.TCP, Addr: netip.AddrPortFrom(ip, r.d.agent.State().TCPPort)}] = refused
		for at := range owners {
			if at.Addr().Is6() == ip.Is6() {
				direct[lb.Frontend{Protocol: lb.UDP, Addr: netip.AddrPortFrom(ip, at.Port())}] = refused
			}
		}
		for f, want := range direct {
			if want == untouched && m.checks(f, r.nodePortAddrs()) {
				want = held
			}
			for _, c := range []mClient{theNodeItself, aPodHere, aStranger} {
				got := k.fate(f.Protocol, c.ips[i], f.Addr, c.name == theNodeItself.name)
				if got != want && !slices.Contains(nodePortPool, f.Addr.Port()) {
					report("kernel: proxy port %s, asked straight by %s: %s, want %s", f, c.name, got, want)
				}
			}
		}
	}
	return udpPorts
}

// compareSockets compares the sockets of this namespace, all of which are known.
func (r *modelRun) compareSockets(m *model, k *kernel, udpPorts map[lb.Frontend]uint16, report func(string, ...any)) {
	want := map[lb.Frontend]bool{}
	add := func(p lb.Protocol, ip netip.Addr, port uint16) {
		want[lb.Frontend{Protocol: p, Addr: netip.AddrPortFrom(ip, port)}] = true
	}
	addrs := r.nodePortAddrs()
	if r.listed == nil {
		addrs = []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	}
	listen := func(p lb.Protocol, port uint16, ipv6 bool) (conflicts int) {
		for _, ip := range addrs {
			f := lb.Frontend{Protocol: p, Addr: netip.AddrPortFrom(ip, port)}
			switch exact := m.owners[f]; {
			case ip.Is6() != ipv6, exact != nil && exact.kind != lb.NodePort:
			case r.squatted(f):
				conflicts++
			default:
				want[f] = true
			}
		}
		return conflicts
	}
	conflicts := 0
	for f, o := range m.owners {
		if o.kind == lb.NodePort {
			conflicts += listen(f.Protocol, f.Addr.Port(), o.id.IPv6)
		}
	}
	for key := range m.health {
		listen(lb.TCP, key.port, key.ipv6)
	}
	for f, port := range udpPorts {
		add(lb.UDP, unspecified(f.Addr.Addr().Is6()), port)
	}
	for port := range r.squatters {
		add(lb.TCP, netip.IPv4Unspecified(), port)
	}
	for i := range nodeMain {
		add(lb.TCP, unspecified(i == 1), r.d.agent.State().TCPPort)
		add(lb.UDP, nodeMain[i], clientPort)
		for _, ip := range endpointPool[i] {
			for _, port := range targetPool {
				add(lb.TCP, ip, port)
				add(lb.UDP, ip, port)
			}
		}
	}
	for f := range k.sockets {
		if !want[f] {
			report("sockets: there is one on %s", f)
		}
	}
	for f := range want {
		if !k.sockets[f] {
			report("sockets: there is none on %s", f)
		}
	}
	if got := r.d.agent.Status().Conflicts; got != conflicts {
		report("status: %d conflicts, want %d", got, conflicts)
	}
}

// compareTable compares whose each point is by the table, and the endpoints of each
// service port.
func (r *modelRun) compareTable(m *model, points []lb.Frontend, report func(string, ...any)) {
	table := r.d.data.lb.Table()
	for _, f := range slices.Concat(points, slices.Collect(maps.Keys(m.owners))) {
		want := m.owners[f]
		if want == nil {
			want = m.owners[lb.Frontend{Protocol: f.Protocol, Addr: netip.AddrPortFrom(unspecified(f.Addr.Addr().Is6()), f.Addr.Port())}]
		}
		s, a, ok := table.Lookup(f)
		if ok != (want != nil) || ok && (s.ID != want.id || a.Addr != want.addr || a.Kind != want.kind || a.Local != want.local) {
			report("table: %s belongs to %v, want %s", f, a, want)
		}
	}
	backends := 0
	for id, want := range m.services {
		backends += len(want)
		s, ok := table.Service(id)
		if !ok {
			report("table: there is no %s %s", id.Protocol, id)
			continue
		}
		for local, got := range map[bool][]lb.Backend{false: s.Eligible(), true: s.EligibleLocal()} {
			var addrs []netip.AddrPort
			for _, b := range got {
				addrs = append(addrs, b.Addr)
			}
			slices.SortFunc(addrs, netip.AddrPort.Compare)
			if !slices.Equal(addrs, eligible(want, local)) {
				report("table: eligible for %s %s (policy Local: %v) are %s, want %s of %+v", id.Protocol, id, local, addrs, eligible(want, local), want)
			}
		}
	}
	s := r.d.agent.Status()
	if got, want := [...]int{table.Len(), s.Services, s.Frontends, s.Backends}, [...]int{len(m.services), len(m.services), len(m.owners), backends}; got != want {
		report("status: service ports in the table and said, frontends, backends: %v, want %v", got, want)
	}
}

// comparePicks asks the balancer as the data path does, at every address.
func (r *modelRun) comparePicks(m *model, report func(string, ...any)) {
	for v, addr := range r.sticky {
		if s, ok := r.affinityOf(v.id); !ok || !s || !slices.Contains(eligible(m.services[v.id], false), addr) && !slices.Contains(eligible(m.services[v.id], true), addr) {
			delete(r.sticky, v) // forgotten, even if it should come back
		}
	}
	frontends := slices.SortedFunc(maps.Keys(m.owners), func(a, b lb.Frontend) int { return strings.Compare(a.String(), b.String()) })
	for _, f := range frontends {
		o := m.owners[f]
		asked := f
		if o.kind == lb.NodePort {
			asked.Addr = netip.AddrPortFrom(nodeMain[index(o.id.IPv6)], f.Addr.Port())
			if m.owners[asked] != nil {
				continue
			}
		}
		sticky, _ := r.affinityOf(o.id)
		for _, c := range []mClient{aPodHere, aHost, aStranger} {
			client := c.ips[index(o.id.IPv6)]
			want := o.backendsFor(m.inside(client, asked.Addr.Addr()))
			var err error
			switch {
			case !m.allows(o, client):
				err = balancer.ErrNotAllowed
			case len(eligible(o.backends, false)) == 0:
				err = balancer.ErrNoBackend
			case len(want) == 0:
				err = balancer.ErrNoLocalBackend
			}
			var got []netip.AddrPort
			for range max(1, len(want)) {
				choice, gotErr := r.d.data.lb.Pick(balancer.Flow{Frontend: asked, Client: client, Now: eventloop.Now()})
				if !errors.Is(gotErr, err) || gotErr != nil && err == nil {
					report("pick: %s by %s: %v, want %v: %s", asked, c.name, gotErr, err, o)
				}
				if gotErr != nil {
					break
				}
				choice.Done(nil)
				got = append(got, choice.Backend())
				if choice.Service() != o.id {
					report("pick: %s by %s goes to %s, want %s", asked, c.name, choice.Service(), o.id)
				}
			}
			if err != nil || len(got) == 0 {
				continue
			}
			if v := (visitor{o.id, client}); sticky {
				if was, ok := r.sticky[v]; ok && slices.Contains(want, was) {
					want = []netip.AddrPort{was}
				}
				r.sticky[v] = got[0]
				if slices.Contains(want, got[0]) {
					want = slices.Repeat(got[:1], len(got))
				}
			}
			slices.SortFunc(got, netip.AddrPort.Compare)
			if !slices.Equal(got, want) {
				report("pick: %s by %s: %s in turns, want %s (affinity: %v)", asked, c.name, got, want, sticky)
			}
		}
	}
}

// affinityOf reports whether a service port has affinity, and whether there is one.
func (r *modelRun) affinityOf(id lb.ID) (sticky, ok bool) {
	for _, c := range r.inForce {
		if s := c.service; s != nil && s.namespace == id.Namespace && s.name == id.Name {
			return s.affinity, true
		}
	}
	return false, false
}

// clientPort is where the UDP client of each family asks from, always, so that its
// flows outlive changes as long as they may.
const clientPort = 20000

const answerTime = 3 * time.Second // more than enough, on the same host

// askUDP has the node ask at every UDP frontend at which there is somebody for it.
func (r *modelRun) askUDP(m *model, points []lb.Frontend, report func(string, ...any)) {
	var asked [2]map[netip.AddrPort]*mOwner
	for i := range asked {
		asked[i] = map[netip.AddrPort]*mOwner{}
	}
	for _, f := range points {
		family := index(f.Addr.Addr().Is6())
		o := m.owner(f, r.nodePortAddrs())
		if fate := m.fate(o, nodeMain[family], f.Addr.Addr()); f.Protocol != lb.UDP || fate != steered && fate != held {
			delete(r.flows, f)
		} else if _, err := r.clients[family].WriteToUDPAddrPort([]byte("?"), f.Addr); err != nil {
			report("UDP: %s cannot be asked: %v", f, err)
		} else {
			asked[family][f.Addr] = o
		}
	}
	for family, waiting := range asked {
		c := r.clients[family]
		check(r.t, c.SetReadDeadline(time.Now().Add(answerTime)))
		buf := make([]byte, 64)
		for len(waiting) > 0 {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				break // those that are left have no answer
			}
			o := waiting[from]
			if delete(waiting, from); o == nil {
				report("UDP: %s answers more than once, or was not asked", from)
				continue
			}
			r.checkAnswer(o, lb.Frontend{Protocol: lb.UDP, Addr: from}, string(buf[:n]), report)
		}
		for addr, o := range waiting {
			report("UDP: no answer from %s: %s", addr, o)
		}
	}
}

// checkAnswer looks at who has answered the client of a UDP frontend. A flow stays
// where it was for as long as it may.
func (r *modelRun) checkAnswer(o *mOwner, f lb.Frontend, text string, report func(string, ...any)) {
	addr, err := netip.ParseAddrPort(text)
	was, known := r.flows[f]
	now := answer{door{o.id, o.kind == lb.NodePort}, addr}
	switch {
	case err != nil || !live(o.backends, addr):
		report("UDP: %s is answered by %q: %s", f, text, o)
	case known && was.at == now.at && live(o.backends, was.from) && was != now:
		report("UDP: the flow to %s was moved from %s to %s: %s", f, was.from, addr, o)
	}
	r.flows[f] = now
}

// askTCP has the node connect to a few TCP frontends.
func (r *modelRun) askTCP(m *model, points []lb.Frontend, report func(string, ...any)) {
	left := map[string]int{steered: 3, held: 1, refused: 2}
	for _, i := range r.rng.Perm(len(points)) {
		f := points[i]
		ip := f.Addr.Addr()
		src := nodeMain[index(ip.Is6())]
		o := m.owner(f, r.nodePortAddrs())
		fate := m.fate(o, src, ip)
		if f.Protocol != lb.TCP || left[fate] == 0 || fate == held && r.squatted(f) {
			continue
		}
		left[fate]--
		answer, err := connect(src, f.Addr)
		addr, _ := netip.ParseAddrPort(answer)
		switch want := o.backendsFor(true); {
		case fate == refused && !errors.Is(err, syscall.ECONNREFUSED):
			report("TCP: %s: %q, %v, want refused: %s", f, answer, err, o)
		case fate != refused && !slices.Contains(want, addr):
			report("TCP: %s: %q, %v, want one of %s: %s", f, answer, err, want, o)
		}
	}
}

// connect connects from an address and returns what the endpoint says. It resets
// the connection, so that nothing is left of it.
func connect(src netip.Addr, to netip.AddrPort) (string, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: src.AsSlice()}, Timeout: testbed.Patience}
	c, err := d.Dial("tcp", to.String())
	if err != nil {
		return "", err
	}
	defer c.Close()
	buf := make([]byte, 64)
	err = errors.Join(c.(*net.TCPConn).SetLinger(0), c.SetDeadline(time.Now().Add(testbed.Patience)))
	n, err2 := c.Read(buf)
	return strings.TrimSpace(string(buf[:n])), errors.Join(err, err2)
}

// askHealth asks the health checks of Services.
func (r *modelRun) askHealth(m *model, report func(string, ...any)) {
	for key, want := range m.health {
		addr := netip.AddrPortFrom(nodeMain[index(key.ipv6)], key.port)
		if r.squatted(lb.Frontend{Protocol: lb.TCP, Addr: addr}) {
			continue
		}
		code := http.StatusOK
		if want == 0 {
			code = http.StatusServiceUnavailable
		}
		var said struct {
			Service        struct{ Name string }
			LocalEndpoints int
		}
		got, body, err := r.here.Get(r.t.Context(), "http://"+addr.String())
		if err = errors.Join(err, json.Unmarshal([]byte(body), &said)); err != nil || got != code || said.LocalEndpoints != want || said.Service.Name != key.name {
			report("health: %s says %d, %+v, %v, want %d local endpoints of %s", addr, got, said, err, want, key.name)
		}
	}
}

// String describes the owner of an address, for reports.
func (o *mOwner) String() string {
	if o == nil {
		return "nobody's"
	}
	return fmt.Sprintf("%s %s of %s %s, policy %s, for %v, endpoints %+v", o.kind, o.addr, o.id.Protocol, o.id, policy(o.local), o.ranges, o.backends)
}
