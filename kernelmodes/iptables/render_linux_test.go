package iptables

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes"
	"github.com/sluice-lb/sluice/kernelmodes/iptables/trace"
	"github.com/sluice-lb/sluice/lb"
)

// rendered is the content for some Services, not written anywhere.
func rendered(s shape, services ...lb.Service) *content {
	c := newContent(netfilter.NewRuleset(nil, layout(s.ipv6)), s)
	d := whole(services...)
	c.edit(s, c.changes(&d, s.ipv6))
	return c
}

// dump is what iptables-save would print of a content, as far as it matters.
func dump(c *content) string {
	var b strings.Builder
	b.WriteString(c.String())
	for _, j := range jumps {
		fmt.Fprintf(&b, "*%s\n-A %s %s\nCOMMIT\n", j.Table, j.From, j)
	}
	return b.String()
}

func parse(t *testing.T, c *content) *trace.Rules {
	t.Helper()
	r, err := trace.Parse(dump(c))
	testbed.Check(t, err)
	return r
}

// world is the node of the tests of rendering, in one family.
type world struct{ ipv6 bool }

func (w world) shape() shape {
	return shape{
		ipv6: w.ipv6, mark: 0x4000, randomFully: true, bpf: true, local: []string{"-s " + podNet(w.ipv6).String()},
	}
}

func (w world) node() trace.Node { return trace.Node{Addresses: []netip.Addr{ip(w.ipv6, "node", 10)}} }

// clients are from elsewhere, from a pod of this node, and the node.
func (w world) clients() map[string]trace.Packet {
	return map[string]trace.Packet{
		"outside": {In: "eth0", Src: at(ip(w.ipv6, "node", 99), 40000)},
		"pod":     {In: "cni0", Src: at(ip(w.ipv6, "pod", 77), 40000)},
		"node":    {Src: at(ip(w.ipv6, "node", 10), 40000)},
	}
}

// TestSemantics compares where every kind of client gets by the rules with what lb
// computes: which backends each gets, which is refused or dropped, and which address is
// kept, as kube-proxy keeps it.
func TestSemantics(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		w := world{ipv6}
		for _, protocol := range []lb.Protocol{lb.TCP, lb.UDP, lb.SCTP} {
			for _, local := range []bool{false, true} {
				for name, backends := range backendSets(ipv6) {
					for _, affinity := range []int64{0, 3e9} {
						s := w.service(protocol, local, backends)
						s.AffinityTimeout = affinity
						what := fmt.Sprintf("%v %v local=%v %s %d", ipv6, protocol, local, name, affinity)
						t.Run(what, func(t *testing.T) { w.check(t, s) })
					}
				}
			}
		}
	}
}

func backendSets(ipv6 bool) map[string][]lb.Backend {
	one := func(n int, local, ready bool) lb.Backend {
		return lb.Backend{Addr: at(ip(ipv6, "pod", n), 8080), Local: local, Ready: ready, Serving: true, Terminating: !ready}
	}
	return map[string][]lb.Backend{
		"none":  nil,
		"here":  {one(1, true, true)},
		"there": {one(256, false, true)},
		"many": {
			one(1, true, true), one(2, true, true), one(256, false, true), one(257, false, true), one(258, false, true),
		},
		"terminating": {one(1, true, false), one(256, false, false)},
		"mixed":       {one(1, true, false), one(256, false, true)},
	}
}

// service has an address of each kind; the second load-balancer IP is for few.
func (w world) service(protocol lb.Protocol, local bool, backends []lb.Backend) lb.Service {
	s := plain(w.ipv6, 1)
	s.Protocol, s.Backends = protocol, backends
	sources := []netip.Prefix{netip.PrefixFrom(ip(w.ipv6, "node", 99), ip(w.ipv6, "node", 99).BitLen())}
	s.Addresses = []lb.Address{
		{Addr: at(ip(w.ipv6, "cluster", 1), 80), Local: local},
		{Addr: anywhere(w.ipv6, 30080), Kind: lb.NodePort, Local: local},
		{Addr: at(ip(w.ipv6, "external", 1), 80), Kind: lb.ExternalIP, Local: local},
		{Addr: at(ip(w.ipv6, "lb", 1), 80), Kind: lb.LoadBalancerIP, Local: local},
		{Addr: at(ip(w.ipv6, "lb", 2), 80), Kind: lb.LoadBalancerIP, Local: local, Sources: sources},
	}
	return s
}

func (w world) check(t *testing.T, s lb.Service) {
	rules := parse(t, rendered(w.shape(), s))
	for who, p := range w.clients() {
		for _, a := range s.Addresses {
			p.Protocol, p.Dst = netfilter.ProtocolName(s.Protocol), a.Addr
			if a.Addr.Addr().IsUnspecified() {
				p.Dst = at(ip(w.ipv6, "node", 10), a.Addr.Port())
			}
			inside, outside := s.Verdicts(a)
			verdict, set := inside, s.Eligible()
			if who == "outside" {
				verdict = outside
			}
			if a.Local && (a.Kind == lb.ClusterIP || who == "outside") {
				set = s.EligibleLocal()
			}
			if len(a.Sources) > 0 && !a.Sources[0].Contains(p.Src.Addr()) && inside != lb.Refuse {
				verdict = lb.Drop
			}
			outcomes := rules.Trace(w.node(), p)
			what := fmt.Sprintf("%s asks %s %s", who, a.Kind, a.Addr)
			if verdict == lb.Serve {
				masqueraded := a.Kind != lb.ClusterIP && (!a.Local || who == "node") || a.Kind == lb.ClusterIP && who != "pod"
				expect(t, what, outcomes, set, masqueraded)
				continue
			}
			want := trace.Drop
			if verdict == lb.Refuse {
				want = trace.Reject
			}
			if len(outcomes) != 1 || outcomes[0].Fate != want {
				t.Errorf("%s: %v, want %s", what, outcomes, want)
			}
		}
	}
}

// expect wants each backend of a set to be as likely as any other.
func expect(t *testing.T, what string, outcomes []trace.Outcome, set []lb.Backend, masqueraded bool) {
	t.Helper()
	chance := make(map[netip.AddrPort]float64)
	for _, o := range outcomes {
		if len(o.Notes) > 0 || o.Fate != trace.Forward || o.Masqueraded != masqueraded {
			t.Errorf(
				"%s: %v, masqueraded %v, notes %q; want it forwarded, masqueraded %v\n%s", what, o, o.Masqueraded, o.Notes,
				masqueraded, strings.Join(o.Steps, "\n"),
			)
		}
		chance[o.Dst] += o.Probability
	}
	if len(chance) != len(set) {
		t.Errorf("%s: gets %v, want %d backends", what, chance, len(set))
	}
	for _, b := range set {
		if math.Abs(chance[b.Addr]-1/float64(len(set))) > 1e-6 {
			t.Errorf("%s: gets %s with probability %v, want 1/%d", what, b.Addr, chance[b.Addr], len(set))
		}
	}
}

// TestAffinity: a client that is remembered goes where it was.
func TestAffinity(t *testing.T) {
	w := world{}
	s := w.service(lb.TCP, false, backendSets(false)["many"])
	s.AffinityTimeout = 10800e9
	c := rendered(w.shape(), s)
	if !strings.Contains(dump(c), "--update --seconds 10800 --reap") {
		t.Errorf("no timeout in:\n%s", dump(c))
	}
	want := s.Backends[3]
	node := w.node()
	node.Recent = func(list string, _ netip.Addr) bool {
		return list == "SLUICE-"+kernelmodes.Suffix(s.ID, want.Addr.String())
	}
	p := w.clients()["outside"]
	p.Protocol, p.Dst = "tcp", s.Addresses[2].Addr
	expect(t, "a client with affinity", parse(t, c).Trace(node, p), []lb.Backend{want}, true)
}

// TestHairpin: an endpoint that gets to itself by a Service is masqueraded, and no other.
func TestHairpin(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		for _, bpf := range []bool{false, true} {
			w := world{ipv6}
			s := w.service(lb.TCP, true, backendSets(ipv6)["many"])
			shape := w.shape()
			shape.bpf = bpf
			rules := parse(t, rendered(shape, s))
			self := s.Backends[0].Addr
			for _, a := range []lb.Address{s.Addresses[0], s.Addresses[2]} {
				p := trace.Packet{In: "cni0", Protocol: "tcp", Src: at(self.Addr(), 40000), Dst: a.Addr}
				found := false
				for _, o := range rules.Trace(w.node(), p) {
					found = found || o.Dst == self
					if o.Masqueraded != (o.Dst == self) {
						t.Errorf("bpf %v: %s that asks %s: %v, masqueraded %v", bpf, p.Src, a.Addr, o, o.Masqueraded)
					}
				}
				if !found {
					t.Errorf("%s that asks %s does not get to itself", p.Src, a.Addr)
				}
			}
		}
	}
}

// TestMasquerade: the modes of telling local traffic, and masquerading all.
func TestMasquerade(t *testing.T) {
	w := world{}
	s := w.service(lb.TCP, false, backendSets(false)["here"])
	for _, test := range []struct {
		name   string
		engine *kernelmodes.Masquerade
		node   lb.Node
		want   map[string]bool // who is masqueraded on the way to a cluster IP
	}{
		{"not known", &kernelmodes.Masquerade{}, lb.Node{}, map[string]bool{}},
		{
			"node's pods", &kernelmodes.Masquerade{}, lb.Node{PodCIDRs: []netip.Prefix{podNet(true), podNet(false)}},
			map[string]bool{"outside": true, "node": true},
		},
		{
			"cluster", &kernelmodes.Masquerade{LocalCIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.0.0/16")}},
			lb.Node{PodCIDRs: []netip.Prefix{podNet(false)}}, map[string]bool{"pod": true},
		},
		{"bridge", &kernelmodes.Masquerade{LocalBridge: "cni0"}, lb.Node{}, map[string]bool{"outside": true, "node": true}},
		{"interfaces", &kernelmodes.Masquerade{LocalInterfaces: "eth"}, lb.Node{},
			map[string]bool{"pod": true, "node": true}},
		{
			"all", &kernelmodes.Masquerade{MasqueradeAll: true}, lb.Node{PodCIDRs: []netip.Prefix{podNet(false)}},
			map[string]bool{"pod": true, "outside": true, "node": true},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			shape := shape{mark: test.engine.Mark(), all: test.engine.MasqueradeAll, local: test.engine.Pods(false, test.node)}
			rules := parse(t, rendered(shape, s))
			for who, p := range w.clients() {
				p.Protocol, p.Dst = "tcp", s.Addresses[0].Addr
				expect(t, who, rules.Trace(w.node(), p), s.Backends, test.want[who])
			}
		})
	}
	bit := kernelmodes.Masquerade{MasqueradeMark: 1 << 3}
	if text := dump(rendered(shape{mark: bit.Mark()}, s)); !strings.Contains(text, "--or-mark 0x8\n") ||
		strings.Contains(text, "0x4000") {
		t.Errorf("mark 8 is not in:\n%s", text)
	}
}

// TestLoopback: what comes by loopback is not forwarded, nor dropped for policy Local.
func TestLoopback(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		w := world{ipv6}
		lo := netip.MustParseAddr(map[bool]string{false: "127.0.0.1", true: "::1"}[ipv6])
		p := trace.Packet{Protocol: "tcp", Src: at(lo, 40000), Dst: at(lo, 30080)}
		for name, want := range map[string]trace.Fate{"here": trace.Here, "there": trace.Here, "none": trace.Reject} {
			s := w.service(lb.TCP, true, backendSets(ipv6)[name])
			out := parse(t, rendered(w.shape(), s)).Trace(w.node(), p)
			if len(out) != 1 || out[0].Fate != want || want == trace.Here && out[0].Dst != p.Dst {
				t.Errorf("endpoints %s: %v, want %s", name, out, want)
			}
			shape := w.shape()
			shape.noLocalhost = true
			out = parse(t, rendered(shape, s)).Trace(w.node(), p)
			if len(out) != 1 || out[0].Fate != trace.Reject {
				t.Errorf("endpoints %s, not on loopback: %v, want %s", name, out, trace.Reject)
			}
		}
	}
}

// TestInvalid: a packet that belongs to no flow is dropped, unless that is not wanted.
func TestInvalid(t *testing.T) {
	for _, liberal := range []bool{false, true} {
		text := dump(rendered(shape{mark: 1, liberal: liberal}))
		if got := strings.Contains(text, "--ctstate INVALID -j DROP"); got == liberal {
			t.Errorf("liberal %v: drops what is invalid: %v", liberal, got)
		}
	}
}

// TestOneChange: a change of one Service among many writes the rules of that Service and of
// no other, and nothing if nothing has changed.
func TestOneChange(t *testing.T) {
	h := testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node
	const n = 1000
	services := make([]lb.Service, n)
	for i := range services {
		services[i] = plain(false, i+1, 2*i+1, 2*i+2)
		if i%5 == 0 {
			node := lb.Address{Addr: anywhere(false, uint16(30000+i)), Kind: lb.NodePort}
			services[i].Addresses = append(services[i].Addresses, node)
		}
	}
	e := engineOf(testbed.IPTables{})
	dir := t.TempDir()
	const tee = `case "$0" in *-restore) cd %s; cat >text; cat text >>written; exec <text;; esac`
	e.Command = testbed.WrapIPTables(t, dir, "iptables-nft", fmt.Sprintf(tee, dir))
	syncOn(t, h, e, lb.Node{}, services...)
	apply := func(d lb.Delta) string {
		t.Helper()
		_ = os.Remove(dir + "/written") // not there if nothing was written
		h.DoT(t, func() error { return e.Sync(t.Context(), d, lb.Node{}) })
		text, err := os.ReadFile(dir + "/written")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return string(text)
	}
	old := services[500]
	change := func(name string, do func(s *lb.Service)) {
		t.Run(name, func(t *testing.T) {
			now := old
			now.Addresses, now.Backends = slices.Clone(old.Addresses), slices.Clone(old.Backends)
			there := lb.Delta{Changed: []lb.Change{{Old: &old, New: &now}}}
			back := lb.Delta{Changed: []lb.Change{{Old: &now, New: &old}}}
			if do != nil {
				do(&now)
			} else {
				there, back = lb.Delta{Removed: []*lb.Service{&old}}, lb.Delta{Added: []*lb.Service{&old}}
			}
			text := apply(there)
			if text2 := apply(lb.Delta{}); text2 != "" {
				t.Errorf("nothing has changed, and it writes:\n%s", text2)
			}
			mine := []string{kernelmodes.Suffix(old.ID, ""), "default/s501"}
			for _, b := range slices.Concat(now.Backends, old.Backends) {
				mine = append(mine, kernelmodes.Suffix(old.ID, b.Addr.String()))
			}
			lines := strings.Split(strings.TrimSpace(text), "\n")
			for _, line := range lines {
				isMine := func(m string) bool { return strings.Contains(line, m) }
				if !strings.HasPrefix(line, "*") && line != "COMMIT" && !slices.ContainsFunc(mine, isMine) && !bucketLine(line) {
					t.Errorf("writes %q", line)
				}
			}
			if len(lines) < 4 || len(lines) > 40 {
				t.Errorf("%d lines:\n%s", len(lines), text)
			}
			apply(back)
		})
	}
	change("endpoint gone", func(s *lb.Service) { s.Backends = s.Backends[:1] })
	change("endpoint come", func(s *lb.Service) { s.Backends = append(s.Backends, plain(false, 1, 60000).Backends...) })
	change("no endpoints", func(s *lb.Service) { s.Backends = nil })
	change("affinity", func(s *lb.Service) { s.AffinityTimeout = 1e9 })
	change("address", func(s *lb.Service) { s.Addresses[0].Addr = at(ip(false, "cluster", 60000), 80) })
	change("gone", nil)
}

// bucketLine reports whether a line makes or removes a bucket, which holds what this
// change alone puts there.
func bucketLine(line string) bool {
	for _, prefix := range []string{chainNoAddress, chainNoNode} {
		for _, op := range []string{":", "-X ", "-A " + prefix + " ", "-D " + prefix + " "} {
			if strings.HasPrefix(line, op+prefix+"-") || strings.HasPrefix(line, op) && strings.Contains(line, "-j "+prefix+"-") {
				return true
			}
		}
	}
	return false
}
