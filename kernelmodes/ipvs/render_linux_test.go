package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes"
	"github.com/sluice-lb/sluice/lb"
)

// allSets are the names of all sets.
var allSets = append(slices.Clip(setOrder), setNear)

// everyKind has Services of every kind, in both families.
func everyKind() []lb.Service {
	b := func(addr string, local bool) lb.Backend {
		return lb.Backend{Addr: netip.MustParseAddrPort(addr), Ready: true, Serving: true, Local: local}
	}
	at := func(addr string, kind lb.Kind, local bool, sources ...string) lb.Address {
		a := lb.Address{Addr: netip.MustParseAddrPort(addr), Kind: kind, Local: local}
		for _, s := range sources {
			a.Sources = append(a.Sources, netip.MustParsePrefix(s))
		}
		return a
	}
	return []lb.Service{
		{
			ID: id("http", lb.TCP, false), AffinityTimeout: 10_800e9, Backends: []lb.Backend{
				b("10.244.1.10:8080", true), b("10.244.2.10:8080", false),
			},
			Addresses: []lb.Address{
				at("10.96.0.80:80", lb.ClusterIP, false), at("0.0.0.0:30080", lb.NodePort, true),
				at("203.0.113.80:80", lb.LoadBalancerIP, true, "198.51.100.0/24", "192.0.2.0/28", "2001:db8::/32"),
			},
		},
		{
			ID: id("dns", lb.UDP, false), Policies: &lb.Policies{Scheduler: "wlc"},
			Backends:  []lb.Backend{b("10.244.1.11:53", true)},
			Addresses: []lb.Address{at("10.96.0.10:53", lb.ClusterIP, true), at("192.0.2.10:53", lb.ExternalIP, false)},
		},
		{
			ID: id("diameter", lb.SCTP, false), Policies: &lb.Policies{Scheduler: "mh,mh-port"},
			Backends:  []lb.Backend{b("10.244.2.11:3868", false)},
			Addresses: []lb.Address{at("10.96.0.38:3868", lb.ClusterIP, true), at("0.0.0.0:30038", lb.NodePort, true)},
		},
		{
			ID: id("none", lb.TCP, false), Policies: &lb.Policies{Scheduler: "nosuch"},
			Addresses: []lb.Address{at("10.96.0.30:80", lb.ClusterIP, false), at("0.0.0.0:30030", lb.NodePort, false)},
		},
		{
			ID: id("exact", lb.TCP, false), Backends: []lb.Backend{b("10.244.1.12:80", false)},
			Addresses: []lb.Address{at("192.0.2.10:30080", lb.ExternalIP, false)},
		},
		{
			ID: id("http", lb.TCP, true), Backends: []lb.Backend{
				b("[2001:db8:244:1::10]:8080", true), b("[2001:db8:244:2::10]:8080", false),
			},
			Addresses: []lb.Address{at("[2001:db8:96::80]:80", lb.ClusterIP, false), at("[::]:30080", lb.NodePort, true)},
		},
	}
}

func testHost(v6 bool) host {
	h := host{
		ipv6: v6, missing: []string{"nosuch"},
		masquerade: masquerade{mark: 0x4000, randomFully: true},
	}
	h.pods, h.node = []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}, []netip.Addr{netip.MustParseAddr("192.0.2.10")}
	if v6 {
		h.pods, h.node = []netip.Prefix{netip.MustParsePrefix("2001:db8:244:1::/64")}, []netip.Addr{netip.MustParseAddr("2001:db8:1::10")}
	}
	h.masquerade.pods = []string{"-s " + h.pods[0].String()}
	return h
}

func (k key) compare(l key) int {
	if k.mark != l.mark {
		return int(k.mark) - int(l.mark)
	}
	if c := k.Addr.Compare(l.Addr); c != 0 {
		return c
	}
	return int(k.Protocol) - int(l.Protocol)
}

// wanted returns what is wanted, sorted.
func wanted[T comparable](r *netfilter.Refs[T], compare func(a, b T) int) (out []T) {
	r.Each(func(x T, wanted, _ bool) {
		if wanted {
			out = append(out, x)
		}
	})
	slices.SortFunc(out, compare)
	return out
}

// text says what is requested, a line for each object.
func (w *state) text() string {
	var b strings.Builder
	for _, k := range slices.SortedFunc(maps.Keys(w.servers), key.compare) {
		s := w.servers[k]
		fmt.Fprintf(&b, "server %s: %s flags %#x timeout %d\n", k, s.scheduler, s.flags, s.timeout)
		for _, k := range s.backends {
			fmt.Fprintf(&b, "  %s", k.addr)
			if k.weight != 1 {
				fmt.Fprintf(&b, " weight %d", k.weight)
			}
			b.WriteString("\n")
		}
	}
	for _, a := range wanted(&w.addresses, netip.Addr.Compare) {
		fmt.Fprintf(&b, "address %s\n", a)
	}
	for _, name := range allSets {
		for _, m := range wanted(w.set(name), netfilter.Member.Compare) {
			fmt.Fprintf(&b, "member of %s:", name)
			if m.Addr.IsValid() {
				fmt.Fprintf(&b, " %s", m.Addr)
			}
			if m.Port != 0 {
				fmt.Fprintf(&b, " port %d", m.Port)
			}
			if m.Protocol != 0 {
				fmt.Fprintf(&b, " protocol %d", m.Protocol)
			}
			if m.Net.IsValid() {
				fmt.Fprintf(&b, " %s", m.Net)
			}
			if m.Mark != 0 {
				fmt.Fprintf(&b, " mark %#x", m.Mark)
			}
			b.WriteByte('\n')
		}
	}
	for _, f := range w.fallbacks() {
		fmt.Fprintf(&b, "fallback %+v\n", f)
	}
	return b.String() + w.rules.String()
}

// fresh returns a state without Services, which is written nowhere.
func fresh(v6 bool) *state {
	return newState(nil, shape{ipv6: v6, prefix: chainPrefix}, nil, nil)
}

// render returns the state of services, made at once.
func render(h host, services []lb.Service) *state {
	w := fresh(h.ipv6)
	w.sync(h, services)
	return w
}

// sync updates a state to some Services.
func (w *state) sync(h host, services []lb.Service) {
	d := whole(services...)
	w.update(h, &d)
}

func TestRender(t *testing.T) {
	rules := render(testHost(false), nil).rules.String()
	testbed.Golden(t, "testdata/"+"rules"+".txt", rules)
	for name, h := range map[string]host{"ipv4": testHost(false), "ipv6": testHost(true)} {
		want := rules
		if h.ipv6 {
			r := strings.NewReplacer("IPVS4", "IPVS6", "icmp-", "icmp6-", "10.244.1.0/24", "2001:db8:244:1::/64")
			want = r.Replace(rules)
		}
		got, same := strings.CutSuffix(render(h, everyKind()).text(), want)
		if !same {
			t.Errorf("%s: rules depend on Services, or differ from IPv4's in more than names:\n%s", name, got)
		}
		testbed.Golden(t, "testdata/"+name+".txt", got)
	}
}

// TestRenderMasquerade: options say what is masqueraded, and which clients are on this node.
func TestRenderMasquerade(t *testing.T) {
	const from, mark = "-A SLUICE-IPVS-IN -", "-A SLUICE-IPVS-MARK -"
	const external = mark + "m set --match-set SLUICE-IPVS4-EXTERNAL dst,dst -j MARK --or-mark 0x4000\n"
	for want, m := range map[string]kernelmodes.Masquerade{
		external: {},
		external + mark + "m set --match-set SLUICE-IPVS4-CLUSTER dst,dst -j MARK --or-mark 0x4000\n": {
			MasqueradeAll: true, LocalCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		},
		from + "i cni0 -g SLUICE-IPVS-NEAR\n" + from + "i veth+ -g SLUICE-IPVS-NEAR\n" + external +
			mark + "m set ! --match-set SLUICE-IPVS4-CLUSTER dst,dst -j RETURN\n" +
			mark + "i cni0 -j RETURN\n" + mark + "i veth+ -j RETURN\n" +
			mark + "j MARK --or-mark 0x4000\n": {LocalBridge: "cni0", LocalInterfaces: "veth"},
	} {
		h := testHost(false)
		h.masquerade = (&Engine{Masquerade: m}).host(lb.Node{}).masquerade
		var got strings.Builder
		for line := range strings.Lines(render(h, nil).rules.String()) {
			if strings.HasPrefix(line, mark) || strings.HasPrefix(line, from+"i ") {
				got.WriteString(line)
			}
		}
		if diff := cmp.Diff(want, got.String()); diff != "" {
			t.Errorf("%+v: -want +got:\n%s", m, diff)
		}
	}
}

// TestRenderOrder: a state is independent of the order of backends.
func TestRenderOrder(t *testing.T) {
	services := everyKind()
	want := render(testHost(false), services).text()
	for i := range services {
		slices.Reverse(services[i].Backends)
	}
	if diff := cmp.Diff(want, render(testHost(false), services).text()); diff != "" {
		t.Errorf("backends in another order: -want +got:\n%s", diff)
	}
}

// TestNumbers: Services keep the number that they have in marks, and get one that no
// Service had.
func TestNumbers(t *testing.T) {
	gone, all := everyKind()[0], everyKind()
	gone.Name = "gone"
	numbers := func(w *state) map[lb.ID]uint16 {
		out := make(map[lb.ID]uint16)
		for id, u := range w.units {
			if u.number != 0 {
				out[id] = u.number
			}
		}
		return out
	}
	w := render(testHost(false), []lb.Service{gone, all[0]})
	clashing := numbers(w)
	w = render(testHost(false), []lb.Service{gone})
	w.sync(testHost(false), all[:1])
	w.sync(testHost(false), all)
	want := map[lb.ID]uint16{id("http", lb.TCP, false): 2, id("diameter", lb.SCTP, false): 3}
	if diff := cmp.Diff(want, numbers(w)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(map[lb.ID]uint16{gone.ID: 1}, clashing); diff != "" {
		t.Errorf("where addresses clash: -want +got:\n%s", diff)
	}
	for i := range all {
		all[i].Addresses = all[i].Addresses[:1] // cluster IPs need none
	}
	if w.sync(testHost(false), all); len(w.numbers) > 0 {
		t.Errorf("%d numbers are kept that no Service needs", len(w.numbers))
	}
}

// TestNumbersAfterRestart: Services keep the numbers that another process has given them,
// and gives none that is the mark of a virtual server in the kernel.
func TestNumbersAfterRestart(t *testing.T) {
	a, b := everyKind()[0], everyKind()[0]
	a.Name, b.Name = "a", "b"
	b.Addresses = nil
	for i, at := range a.Addresses {
		at.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(100 + i)}), at.Addr.Port())
		b.Addresses = append(b.Addresses, at)
	}
	before := render(testHost(false), []lb.Service{b}) // a came, and was the second
	before.sync(testHost(false), []lb.Service{a, b})
	members, servers := make(map[string][]netfilter.Member), make(map[key]*held)
	for _, name := range allSets {
		members[name] = wanted(before.set(name), netfilter.Member.Compare)
	}
	for x := range before.servers {
		servers[x] = new(held)
	}
	for name, want := range map[string][2]uint16{"as it was": {2, 1}, "b has gone": {2, 0}, "NEAR was flushed": {3, 4}} {
		w, list := fresh(false), []lb.Service{a, b}
		kept := maps.Clone(members)
		switch {
		case want[1] == 0:
			list = list[:1]
		case want[1] == 4:
			delete(kept, setNear)
		}
		for _, name := range allSets {
			w.set(name).Found(kept[name])
		}
		w.found(nil, servers)
		w.sync(testHost(false), list)
		got := [2]uint16{w.units[a.ID].number}
		if u := w.units[b.ID]; u != nil {
			got[1] = u.number
		}
		if got != want {
			t.Errorf("%s: the Services a and b have the numbers %v, want %v", name, got, want)
		}
	}
}

// TestRenderWeights: weights are those of the kernel's real servers, by a scheduler that takes notice of them, and what
// is in maintenance is none.
func TestRenderWeights(t *testing.T) {
	for _, test := range []struct {
		scheduler, missing string
		weights            [3]uint16
		want               string // scheduler and weights of what is not in maintenance
		fallback           string
	}{
		{"", "", [3]uint16{70, 30, 0}, "wrr 70 30", ""},
		{"lc", "", [3]uint16{70, 30, 0}, "wlc 70 30", ""},
		{"maglev", "", [3]uint16{70, 30, 0}, "mh 70 30", ""},
		{"rr", "", [3]uint16{7, 7, 0}, "rr 7 7", ""},
		{"", "wrr", [3]uint16{70, 30, 0}, "rr 70 30", "wrr rr the kernel has no scheduler wrr"},
		{"p2c", "p2c", [3]uint16{70, 30, 0}, "wrr 70 30", "p2c wrr the kernel has no scheduler p2c"},
	} {
		s := everyKind()[0]
		s.AffinityTimeout, s.Policies = 0, &lb.Policies{Scheduler: test.scheduler}
		s.Backends = append(slices.Clone(s.Backends), lb.Backend{Addr: netip.MustParseAddrPort("10.244.3.10:8080"), Ready: true})
		for i, w := range test.weights {
			s.Backends[i].Weight, s.Backends[i].Maintenance = w, w == 0
		}
		h := testHost(false)
		h.missing = []string{test.missing}
		r := h.render(&s)
		got := r.frontends[0].server.scheduler
		for _, k := range r.frontends[0].server.backends {
			got += fmt.Sprintf(" %d", k.weight)
		}
		fallback := ""
		if f := r.fallback; f != nil {
			fallback = f.Requested + " " + f.Used + " " + f.Reason
		}
		if got != test.want || fallback != test.fallback {
			t.Errorf("%q: %s, fallback %q; want %s, %q", test.scheduler, got, fallback, test.want, test.fallback)
		}
	}
}

func TestParseScheduler(t *testing.T) {
	for requested, want := range map[string]string{
		"rr": "rr 0x0", "WLC ": "wlc 0x0", "mh": "mh 0x8", "mh,mh-port": "mh 0x18", "sh,sh-fallback, sh-port": "sh 0x18", "future7": "future7 0x0",
		"maglev": "mh 0x8", "Maglev,mh-port": "mh 0x18",
		"": "error", ",": "error", "r r": "error", "rr,rr-port": "error", "mh,sh-port": "error", "muchtoolongaword": "error", "../x": "error",
	} {
		name, flags, err := parseScheduler(requested)
		got := fmt.Sprintf("%s %#x", name, flags)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q: %s, want %s", requested, got, want)
		}
	}
}
