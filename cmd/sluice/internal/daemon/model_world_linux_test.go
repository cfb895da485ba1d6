package daemon

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
)

// The world is what the folder of manifests says, in the test's own words. It
// changes at random, and is written down as YAML for the program to read.

// mService is a Service. It may hold what its type cannot have; normal removes that.
type mService struct {
	namespace, name string
	kind            string // its type, or "Headless", or "Unallocated": no cluster IP yet
	proxy           string // whose it is, by label
	clusterIPs      []netip.Addr
	externalIPs     []netip.Addr
	ingress         []mIngress
	ranges          []netip.Prefix
	internalLocal   bool // internalTrafficPolicy
	externalLocal   bool // externalTrafficPolicy
	affinity        bool
	healthPort      uint16
	ports           []mPort
}

type mIngress struct {
	ip   netip.Addr // invalid: a name stands in its place
	mode string     // "", "VIP" or "Proxy"
}

type mPort struct {
	name, protocol string
	number         uint16
	nodePort       uint16 // 0: none
}

// mSlice is an EndpointSlice.
type mSlice struct {
	headless  bool // labelled as such
	ipv6      bool
	ports     []mPort // number is where endpoints listen
	endpoints []mEndpoint
}

// mEndpoint is an endpoint. A condition may be "", which is that it is not said.
type mEndpoint struct {
	ip                          netip.Addr
	ready, serving, terminating string
	node                        string
	forZones, forNodes          []string
}

// mNode is our Node.
type mNode struct {
	zone      string
	podCIDRs  []netip.Prefix
	addresses []netip.Addr
}

// unit is a Service and its slices. Slice 0 is in the file of the Service, each
// other one in its own. What they point to is replaced, never changed.
type unit struct {
	service *mService
	slices  [3]*mSlice
}

// content is what one file says: of unit number n, or of the Node.
type content struct {
	n       int
	service *mService
	slices  map[int]*mSlice
	node    *mNode
	broken  bool
}

func (c content) equal(d content) bool {
	return c.n == d.n && c.service == d.service && maps.Equal(c.slices, d.slices) && c.node == d.node && c.broken == d.broken
}

// world is everything that changes.
type world struct {
	rng    *rand.Rand
	units  [8]unit
	node   *mNode
	broken map[string]bool // files that are no YAML at present

	written map[string]content // what is in the folder
	inForce map[string]content // what counts of it: the last good state of each file
	holders map[string]string  // claims to the files that have them in force
}

func newWorld(seed, variant uint64) *world {
	return &world{rng: rand.New(rand.NewPCG(seed, variant)), broken: map[string]bool{}, written: map[string]content{}}
}

// The pools are small, so that Services meet. The last two external addresses are
// the node's own (see nodeOwn) and a cluster IP.
var (
	clusterPool  = [2][]netip.Addr{ips("10.96.0.1 10.96.0.2 10.96.0.3 10.96.0.4 10.96.0.5 10.96.0.6 10.96.0.7 10.96.0.8"), ips("fd96::1 fd96::2 fd96::3 fd96::4 fd96::5 fd96::6 fd96::7 fd96::8")}
	externalPool = [2][]netip.Addr{ips("198.51.100.1 198.51.100.2 192.0.2.11 10.96.0.3"), ips("2001:db8:51::1 2001:db8:51::2 2001:db8:1::11 fd96::3")}
	ingressPool  = [2][]netip.Addr{ips("203.0.113.1 198.51.100.1 192.0.2.11"), ips("2001:db8:113::1 2001:db8:51::1 2001:db8:1::11")}
	endpointPool = [2][]netip.Addr{ips("127.1.0.1 127.1.0.2 127.1.0.3 127.1.0.4"), ips("fd01::1 fd01::2 fd01::3 fd01::4")}
	portPool     = []uint16{53, 80, 30002} // the last is a node port, too
	nodePortPool = []uint16{30001, 30002, 30003, 30004, 30005, 30006}
	healthPool   = []uint16{31001, 31002, 31003}
	targetPool   = []uint16{7001, 7002}
	rangePool    = [2][]netip.Prefix{nets("198.18.1.0/24 10.244.1.0/24 192.0.2.10/32 0.0.0.0/0"), nets("2001:db8:18:1::/64 2001:db8:244:1::/64 2001:db8:1::10/128 ::/0")}
)

func ips(list string) (out []netip.Addr) {
	for _, s := range strings.Fields(list) {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func nets(list string) (out []netip.Prefix) {
	for _, s := range strings.Fields(list) {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// oneIn is true once in n times.
func (w *world) oneIn(n int) bool { return w.rng.IntN(n) == 0 }

func oneOf[T any](w *world, list ...T) T { return list[w.rng.IntN(len(list))] }

// some returns up to most different ones of a list, most often few.
func some[T any](w *world, most int, list []T) (out []T) {
	n := w.rng.IntN(w.rng.IntN(most+1) + 1)
	for _, i := range w.rng.Perm(len(list))[:min(n, len(list))] {
		out = append(out, list[i])
	}
	return out
}

// someOfBoth is some for pools that have one half for each family.
func someOfBoth[T any](w *world, most int, pool [2][]T) []T {
	return some(w, most, slices.Concat(pool[0], pool[1]))
}

// fields set one thing about a Service anew, each.
var fields = []func(w *world, n int, s *mService){
	func(w *world, _ int, s *mService) {
		s.kind = oneOf(w, "ClusterIP", "ClusterIP", "NodePort", "NodePort", "LoadBalancer", "LoadBalancer", "LoadBalancer", "ExternalName", "Headless", "Unallocated")
	},
	func(w *world, n int, s *mService) {
		if w.oneIn(20) {
			n = w.rng.IntN(len(w.units)) // another unit's
		}
		v4, v6 := clusterPool[0][n], clusterPool[1][n]
		s.clusterIPs = oneOf(w, []netip.Addr{v4}, []netip.Addr{v6}, []netip.Addr{v4, v6}, []netip.Addr{v6, v4})
	},
	func(w *world, _ int, s *mService) { s.externalIPs = someOfBoth(w, 4, externalPool) },
	func(w *world, _ int, s *mService) {
		s.ingress = nil
		for _, ip := range someOfBoth(w, 4, ingressPool) {
			s.ingress = append(s.ingress, mIngress{ip, oneOf(w, "", "VIP", "Proxy")})
		}
		if w.oneIn(5) {
			s.ingress = append(s.ingress, mIngress{})
		}
	},
	func(w *world, _ int, s *mService) { s.ranges = someOfBoth(w, 4, rangePool) },
	func(w *world, _ int, s *mService) { s.internalLocal = w.oneIn(3) },
	func(w *world, _ int, s *mService) { s.externalLocal = w.oneIn(2) },
	func(w *world, _ int, s *mService) { s.affinity = w.oneIn(3) },
	func(w *world, _ int, s *mService) { s.proxy = oneOf(w, "", "", "", "", "other") },
	func(w *world, _ int, s *mService) { s.healthPort = w.freeNodePort("TCP", healthPool, s) },
	func(w *world, _ int, s *mService) {
		s.ports = nil
		for _, name := range oneOf(w, []string{""}, []string{"a"}, []string{"a", "b"}, []string{"a", "b", "c"}) {
			p := mPort{name: name, protocol: oneOf(w, "TCP", "UDP"), number: oneOf(w, portPool...)}
			if slices.ContainsFunc(s.ports, func(q mPort) bool { return q.protocol == p.protocol && q.number == p.number }) {
				continue
			}
			if !w.oneIn(4) {
				p.nodePort = w.freeNodePort(p.protocol, nodePortPool, s)
			}
			s.ports = append(s.ports, p)
		}
	},
	func(w *world, _ int, s *mService) { // moves one node port
		if len(s.ports) > 0 {
			s.ports = slices.Clone(s.ports)
			p := &s.ports[w.rng.IntN(len(s.ports))]
			p.nodePort = w.freeNodePort(p.protocol, nodePortPool, s)
		}
	},
}

// freeNodePort returns a node port of a pool that s does not have, and mostly nobody else
// either. 0: there is none left.
func (w *world) freeNodePort(protocol string, pool []uint16, s *mService) uint16 {
	for _, i := range w.rng.Perm(len(pool)) {
		port := pool[i]
		own := protocol == "TCP" && s.healthPort == port ||
			slices.ContainsFunc(s.ports, func(p mPort) bool { return p.protocol == protocol && p.nodePort == port })
		_, taken := w.holders[fmt.Sprint(protocol, " node port ", port)]
		if !own && (!taken || w.oneIn(30)) {
			return port
		}
	}
	return 0
}

// newService returns a Service for unit n.
func (w *world) newService(n int) *mService {
	s := &mService{namespace: namespaceOf(n), name: fmt.Sprint("s", n)}
	for _, set := range fields {
		set(w, n, s)
	}
	return s
}

// newSlice returns a slice for a Service, which may not be there.
func (w *world) newSlice(s *mService) *mSlice {
	slice := &mSlice{ipv6: w.oneIn(2), headless: w.oneIn(30)}
	w.aim(slice, s)
	for range w.rng.IntN(4) {
		slice.endpoints = append(slice.endpoints, w.newEndpoint(slice.ipv6))
	}
	return slice
}

// aim gives a slice the ports of a Service, with a few mistakes.
func (w *world) aim(slice *mSlice, s *mService) {
	slice.ports = nil
	if s == nil {
		return
	}
	for _, p := range s.ports {
		if w.oneIn(20) {
			continue
		}
		q := mPort{name: p.name, protocol: p.protocol, number: oneOf(w, targetPool...)}
		if w.oneIn(20) {
			q.protocol = oneOf(w, "TCP", "UDP", "") // which is TCP
		}
		slice.ports = append(slice.ports, q)
	}
}

func (w *world) newEndpoint(ipv6 bool) mEndpoint {
	e := mEndpoint{ip: oneOf(w, endpointPool[index(ipv6)]...), node: oneOf(w, "", "node", "node", "remote-node")}
	w.condition(&e)
	if w.oneIn(2) {
		e.forZones = some(w, 3, []string{"here", "there"})
		e.forNodes = some(w, 3, []string{"node", "remote-node"})
	}
	return e
}

func (w *world) condition(e *mEndpoint) {
	switch w.rng.IntN(5) {
	case 0: // it leaves
		e.ready, e.serving, e.terminating = "false", oneOf(w, "true", "true", "false"), "true"
	case 1:
		e.ready, e.serving, e.terminating = oneOf(w, "", "true", "false"), oneOf(w, "", "true", "false"), oneOf(w, "", "true", "false")
	default:
		e.ready, e.serving, e.terminating = "true", "true", "false"
	}
}

// change changes one thing at random.
func (w *world) change() {
	n := w.rng.IntN(len(w.units))
	u := &w.units[n]
	switch roll := w.rng.IntN(100); {
	case u.service == nil && roll < 50:
		u.service = w.newService(n)
		for i := range u.slices {
			if w.oneIn(2) {
				u.slices[i] = w.newSlice(u.service)
			}
		}
	case u.service != nil && roll < 45:
		s := *u.service
		for range 1 + w.rng.IntN(2) {
			oneOf(w, fields...)(w, n, &s)
		}
		u.service = &s
	case roll < 55:
		u.service = nil
		if w.oneIn(2) {
			u.slices = [3]*mSlice{}
		}
	case roll < 60:
		w.broken[fileName(n, w.rng.IntN(len(u.slices)))] = true
	case roll < 63:
		w.node = nil
		if !w.oneIn(4) {
			w.node = &mNode{zone: oneOf(w, "here", "here", "there", "")}
			if !w.oneIn(4) {
				w.node.podCIDRs = nets("10.244.1.0/24 2001:db8:244:1::/64")
			}
			if !w.oneIn(3) {
				w.node.addresses = ips("192.0.2.10 2001:db8:1::10")
			}
		}
	default:
		w.changeSlice(u)
	}
}

// changeSlice changes one thing about the slices of a unit.
func (w *world) changeSlice(u *unit) {
	i := w.rng.IntN(len(u.slices))
	if u.slices[i] == nil || w.oneIn(5) {
		u.slices[i] = nil
		if !w.oneIn(3) {
			u.slices[i] = w.newSlice(u.service)
		}
		return
	}
	slice := *u.slices[i]
	slice.endpoints = slices.Clone(slice.endpoints)
	last := len(slice.endpoints) - 1
	switch roll := w.rng.IntN(10); {
	case roll < 2:
		w.aim(&slice, u.service)
	case roll < 5 || last < 0:
		slice.endpoints = append(slice.endpoints, w.newEndpoint(slice.ipv6))
	case roll < 6:
		slice.endpoints = slice.endpoints[:last]
	case roll < 9:
		w.condition(&slice.endpoints[w.rng.IntN(last+1)])
	default:
		slice.endpoints = nil
	}
	u.slices[i] = &slice
}

func fileName(unit, slice int) string {
	if slice == 0 {
		return fmt.Sprintf("s%d.yaml", unit)
	}
	return fmt.Sprintf("s%d-%d.yaml", unit, slice)
}

// files returns what the folder is to hold.
func (w *world) files() map[string]content {
	out := map[string]content{}
	put := func(name string, c content) {
		if c.service == nil && len(c.slices) == 0 && c.node == nil {
			delete(w.broken, name)
			return
		}
		c.broken = w.broken[name]
		out[name] = c
	}
	for n, u := range w.units {
		for i, slice := range u.slices {
			c := content{n: n, slices: map[int]*mSlice{}}
			if slice != nil {
				c.slices[i] = slice
			}
			if i == 0 {
				c.service = u.service
			}
			put(fileName(n, i), c)
		}
	}
	put("node.yaml", content{node: w.node})
	return out
}

// settle applies the rule of package manifest: a file counts as a whole; one that
// is broken, or begins to contradict another, keeps what it last had in force. Of
// two that claim the same, the one that has it keeps it, or else the first by name.
func (w *world) settle() {
	trial := map[string]content{}
	for name, c := range w.written {
		if good, ok := w.inForce[name]; !c.broken {
			trial[name] = c
		} else if ok {
			trial[name] = good
		}
	}
	for {
		claimants := map[string][]string{}
		for _, name := range slices.Sorted(maps.Keys(trial)) {
			for _, claim := range trial[name].claims() {
				claimants[claim] = append(claimants[claim], name)
			}
		}
		lost, holders := map[string]bool{}, map[string]string{}
		for claim, names := range claimants {
			holders[claim] = names[0]
			if slices.Contains(names, w.holders[claim]) {
				holders[claim] = w.holders[claim]
			}
			for _, name := range names {
				if name != holders[claim] {
					lost[name] = true
				}
			}
		}
		if len(lost) == 0 {
			w.inForce, w.holders = trial, holders
			return
		}
		for name := range lost {
			delete(trial, name)
			if good, ok := w.inForce[name]; ok {
				trial[name] = good
			}
		}
	}
}

// claims names what no two files can both have.
func (c content) claims() (out []string) {
	if s := c.service; s != nil {
		s := s.normal()
		for _, p := range s.ports {
			for _, ip := range s.clusterIPs {
				out = append(out, fmt.Sprintf("%s %s port %d", p.protocol, ip, p.number))
			}
			if p.nodePort != 0 {
				out = append(out, fmt.Sprint(p.protocol, " node port ", p.nodePort))
			}
		}
		if s.healthPort != 0 {
			out = append(out, fmt.Sprint("TCP node port ", s.healthPort))
		}
	}
	return out
}

// late returns the files whose present content is not in force.
func (w *world) late() (out []string) {
	for name, c := range w.written {
		if good, ok := w.inForce[name]; !ok || !c.equal(good) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// normal returns s without what a Service of its type cannot have.
func (s mService) normal() mService {
	switch s.kind {
	case "ExternalName", "Headless", "Unallocated":
		s.clusterIPs, s.externalIPs = nil, nil
		s.externalLocal = false
	case "ClusterIP":
		s.externalLocal = s.externalLocal && len(s.externalIPs) > 0
	}
	if s.kind != "LoadBalancer" {
		s.ingress, s.ranges = nil, nil
	}
	if s.kind != "LoadBalancer" || !s.externalLocal {
		s.healthPort = 0
	}
	if s.kind != "NodePort" && s.kind != "LoadBalancer" {
		s.ports = slices.Clone(s.ports)
		for i := range s.ports {
			s.ports[i].nodePort = 0
		}
	}
	return s
}

// yaml returns the text of the file.
func (c content) yaml() string {
	if c.broken {
		return "kind: [\n"
	}
	var docs []string
	if c.service != nil {
		docs = append(docs, c.service.normal().yaml())
	}
	for _, i := range slices.Sorted(maps.Keys(c.slices)) {
		docs = append(docs, c.slices[i].yaml(c.n, i))
	}
	if c.node != nil {
		docs = append(docs, c.node.yaml())
	}
	return strings.Join(docs, "---\n")
}

func (s mService) yaml() string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Service\nmetadata:\n  namespace: %s\n  name: %s\n", s.namespace, s.name)
	if s.proxy != "" {
		fmt.Fprintf(&b, "  labels: {service.kubernetes.io/service-proxy-name: %s}\n", s.proxy)
	}
	switch s.kind {
	case "ExternalName":
		b.WriteString("spec:\n  type: ExternalName\n  externalName: example.com\n")
	case "Headless":
		b.WriteString("spec:\n  clusterIP: None\n")
	case "Unallocated":
		b.WriteString("spec:\n  type: ClusterIP\n")
	default:
		fmt.Fprintf(&b, "spec:\n  type: %s\n  clusterIPs: %s\n  externalIPs: %s\n", s.kind, quoted(s.clusterIPs), quoted(s.externalIPs))
	}
	if s.kind != "ExternalName" {
		fmt.Fprintf(&b, "  internalTrafficPolicy: %s\n", policy(s.internalLocal))
	}
	if s.externalLocal {
		b.WriteString("  externalTrafficPolicy: Local\n")
	}
	if s.affinity {
		b.WriteString("  sessionAffinity: ClientIP\n")
	}
	if s.healthPort != 0 {
		fmt.Fprintf(&b, "  healthCheckNodePort: %d\n", s.healthPort)
	}
	if len(s.ranges) > 0 {
		fmt.Fprintf(&b, "  loadBalancerSourceRanges: %s\n", quoted(s.ranges))
	}
	b.WriteString("  ports:\n")
	for _, p := range s.ports {
		fmt.Fprintf(&b, "  - {name: %q, protocol: %s, port: %d, nodePort: %d}\n", p.name, p.protocol, p.number, p.nodePort)
	}
	if len(s.ingress) > 0 {
		b.WriteString("status:\n  loadBalancer:\n    ingress:\n")
	}
	for _, in := range s.ingress {
		switch {
		case !in.ip.IsValid():
			b.WriteString("    - {hostname: lb.example.com}\n")
		case in.mode == "":
			fmt.Fprintf(&b, "    - {ip: %q}\n", in.ip)
		default:
			fmt.Fprintf(&b, "    - {ip: %q, ipMode: %s}\n", in.ip, in.mode)
		}
	}
	return b.String()
}

func (s *mSlice) yaml(unit, n int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  namespace: %s\n  name: s%d-%d\n  labels:\n    kubernetes.io/service-name: s%d\n",
		namespaceOf(unit), unit, n, unit)
	if s.headless {
		b.WriteString("    service.kubernetes.io/headless: \"\"\n")
	}
	fmt.Fprintf(&b, "addressType: %s\nports:\n", []string{"IPv4", "IPv6"}[index(s.ipv6)])
	for _, p := range s.ports {
		fmt.Fprintf(&b, "- {name: %q, protocol: %q, port: %d}\n", p.name, p.protocol, p.number)
	}
	b.WriteString("endpoints:\n")
	for _, e := range s.endpoints {
		fmt.Fprintf(&b, "- addresses: [%q]\n", e.ip)
		if e.node != "" {
			fmt.Fprintf(&b, "  nodeName: %s\n", e.node)
		}
		b.WriteString("  conditions: {")
		for _, c := range []struct{ name, value string }{{"ready", e.ready}, {"serving", e.serving}, {"terminating", e.terminating}} {
			if c.value != "" {
				fmt.Fprintf(&b, "%s: %s, ", c.name, c.value)
			}
		}
		b.WriteString("}\n")
		if len(e.forZones)+len(e.forNodes) > 0 {
			fmt.Fprintf(&b, "  hints: {forZones: %s, forNodes: %s}\n", named(e.forZones), named(e.forNodes))
		}
	}
	return b.String()
}

func (n *mNode) yaml() string {
	s := "apiVersion: v1\nkind: Node\nmetadata:\n  name: node\n"
	if n.zone != "" {
		s += "  labels: {topology.kubernetes.io/zone: " + n.zone + "}\n"
	}
	s += "spec:\n  podCIDRs: " + quoted(n.podCIDRs) + "\nstatus:\n  addresses:\n"
	for _, a := range n.addresses {
		s += fmt.Sprintf("  - {type: InternalIP, address: %q}\n", a)
	}
	return s
}

// quoted and named write a list in YAML: of texts, of objects that have a name.
func quoted[T fmt.Stringer](list []T) string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = fmt.Sprintf("%q", v.String())
	}
	return "[" + strings.Join(out, ", ") + "]"
}

func named(list []string) string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = "{name: " + v + "}"
	}
	return "[" + strings.Join(out, ", ") + "]"
}

func policy(local bool) string {
	if local {
		return "Local"
	}
	return "Cluster"
}

func namespaceOf(unit int) string { return []string{"default", "apps"}[unit%2] }

func index(ipv6 bool) int {
	if ipv6 {
		return 1
	}
	return 0
}
