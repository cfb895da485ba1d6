package daemon

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/sluice-lb/sluice/lb"
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

	came  map[lb.Name]int         // which Service of the process it was
	count int                     // of them
	had   map[lb.Frontend]lb.Name // who had what a Service listed
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
	endpointPool = [2][]netip.Addr{ips("10.244.9.1 10.244.9.2 10.244.9.3 10.244.9.4"), ips("fd01::1 fd01::2 fd01::3 fd01::4")}
	portPool     = []uint16{53, 80, 30002, 31001} // one is a node port, and one of health checks, too
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
			w.number()
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

// number gives Services their ages.
func (w *world) number() {
	was := w.came
	w.came = map[lb.Name]int{}
	for _, name := range slices.Sorted(maps.Keys(w.inForce)) {
		s := w.inForce[name].service
		if s == nil || s.proxy != "" {
			continue
		}
		id := lb.Name{Namespace: s.namespace, Name: s.name}
		if w.came[id] = was[id]; was[id] == 0 {
			w.count++
			w.came[id] = w.count
		}
	}
}

// restart makes another process begin with what is in force.
func (w *world) restart(local, nodePorts []netip.Addr) {
	w.came, w.had = nil, nil
	w.number()
	w.expect(local, nodePorts)
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

// object is a part of a manifest.
type object = map[string]any

// yaml returns the text of the file.
func (c content) yaml() string {
	if c.broken {
		return "kind: [\n"
	}
	var docs []object
	if c.service != nil {
		docs = append(docs, c.service.normal().manifest())
	}
	for _, i := range slices.Sorted(maps.Keys(c.slices)) {
		docs = append(docs, c.slices[i].manifest(c.n, i))
	}
	if c.node != nil {
		docs = append(docs, c.node.manifest())
	}
	var texts []string
	for _, doc := range docs {
		text, err := yaml.Marshal(doc)
		if err != nil {
			panic(err)
		}
		texts = append(texts, string(text))
	}
	return strings.Join(texts, "---\n")
}

func (s mService) manifest() object {
	meta, spec := object{"namespace": s.namespace, "name": s.name}, object{"internalTrafficPolicy": policy(s.internalLocal)}
	if s.proxy != "" {
		meta["labels"] = object{"service.kubernetes.io/service-proxy-name": s.proxy}
	}
	switch s.kind {
	case "ExternalName":
		spec = object{"type": s.kind, "externalName": "example.com"}
	case "Headless":
		spec["clusterIP"] = "None"
	case "Unallocated":
		spec["type"] = "ClusterIP"
	default:
		spec["type"], spec["clusterIPs"], spec["externalIPs"] = s.kind, s.clusterIPs, s.externalIPs
	}
	if s.externalLocal {
		spec["externalTrafficPolicy"] = "Local"
	}
	if s.affinity {
		spec["sessionAffinity"] = "ClientIP"
	}
	if s.healthPort != 0 {
		spec["healthCheckNodePort"] = s.healthPort
	}
	if len(s.ranges) > 0 {
		spec["loadBalancerSourceRanges"] = s.ranges
	}
	var ports, ingress []object
	for _, p := range s.ports {
		ports = append(ports, object{"name": p.name, "protocol": p.protocol, "port": p.number, "nodePort": p.nodePort})
	}
	for _, in := range s.ingress {
		switch {
		case !in.ip.IsValid():
			ingress = append(ingress, object{"hostname": "lb.example.com"})
		case in.mode == "":
			ingress = append(ingress, object{"ip": in.ip})
		default:
			ingress = append(ingress, object{"ip": in.ip, "ipMode": in.mode})
		}
	}
	spec["ports"] = ports
	return object{"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec, "status": object{"loadBalancer": object{"ingress": ingress}}}
}

func (s *mSlice) manifest(unit, n int) object {
	labels := object{"kubernetes.io/service-name": fmt.Sprint("s", unit)}
	if s.headless {
		labels["service.kubernetes.io/headless"] = ""
	}
	var ports, endpoints []object
	for _, p := range s.ports {
		ports = append(ports, object{"name": p.name, "protocol": p.protocol, "port": p.number})
	}
	for _, e := range s.endpoints {
		conditions, hints := object{}, object{"forZones": named(e.forZones), "forNodes": named(e.forNodes)}
		for name, value := range map[string]string{"ready": e.ready, "serving": e.serving, "terminating": e.terminating} {
			if value != "" {
				conditions[name] = value == "true"
			}
		}
		endpoints = append(endpoints, object{"addresses": []netip.Addr{e.ip}, "nodeName": e.node, "conditions": conditions, "hints": hints})
		if e.node == "" {
			delete(endpoints[len(endpoints)-1], "nodeName")
		}
	}
	return object{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": []string{"IPv4", "IPv6"}[index(s.ipv6)],
		"metadata": object{"namespace": namespaceOf(unit), "name": fmt.Sprintf("s%d-%d", unit, n), "labels": labels}, "ports": ports, "endpoints": endpoints}
}

func (n *mNode) manifest() object {
	labels := object{}
	if n.zone != "" {
		labels["topology.kubernetes.io/zone"] = n.zone
	}
	var addresses []object
	for _, a := range n.addresses {
		addresses = append(addresses, object{"type": "InternalIP", "address": a})
	}
	return object{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": "node", "labels": labels},
		"spec": object{"podCIDRs": n.podCIDRs}, "status": object{"addresses": addresses}}
}

// named writes a list of objects that have a name.
func named(list []string) (out []object) {
	for _, name := range list {
		out = append(out, object{"name": name})
	}
	return out
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
