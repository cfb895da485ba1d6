package nftables

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nft"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// TestKubeProxyCases: what becomes of packets is what kube-proxy's own tests want.
func TestKubeProxyCases(t *testing.T) {
	t.Parallel()
	lab.KubeProxyCases(t, true, func(s lab.Setup) lab.Engine {
		e := &Engine{IPv6: s.IPv6}
		e.MasqueradeAll = s.All
		return e
	})
}

// TestDocumentedRules: the table that the package comment refers to is the one that nft lists for that Service.
func TestDocumentedRules(t *testing.T) {
	h := testbed.NewHostsT(t, "node")[0]
	s := lb.Service{ID: lab.ID("http", lb.TCP, false)}
	s.Addresses = []lb.Address{
		{Addr: netip.MustParseAddrPort("10.96.0.80:80")}, {Addr: lab.Anywhere(false, 30080), Kind: lb.NodePort},
	}
	for _, b := range []string{"10.244.1.10:8080", "10.244.2.10:8080"} {
		s.Backends = append(s.Backends, lb.Backend{Addr: netip.MustParseAddrPort(b), Ready: true, Serving: true})
	}
	s.Backends[0].Local = true
	c := newContent(&nft.Table{Name: table}, (&Engine{}).shape(lb.Node{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}))
	c.random = func(int) int { return 0 }
	c.edit(c.shape, []lb.Change{{New: &s}})
	h.DoT(t, c.Write)
	list := h.Run(t, "nft", "list", "table", table)
	testbed.Golden(t, "testdata/rules.txt", elements.ReplaceAllStringFunc(list, func(block string) string {
		list := strings.FieldsFunc(strings.Trim(block, " {}\n"), func(r rune) bool { return r == ',' })
		for i := range list {
			list[i] = strings.TrimSpace(list[i])
		}
		slices.Sort(list) // a hash has no order
		return "{ " + strings.Join(list, ", ") + " }\n"
	}))
}

// elements are those of a set, as nft lists them.
var elements = regexp.MustCompile(`\{ [^{}]* \}\n`)

// syncOn runs Sync on a host.
func syncOn(t testing.TB, h *testbed.Host, e *Engine, d lb.Delta) {
	t.Helper()
	h.DoT(t, func() error { return e.Sync(t.Context(), d, lb.Node{}) })
}

func verifyOn(t testing.TB, h *testbed.Host, e *Engine) (ok bool) {
	t.Helper()
	h.DoT(t, func() (err error) { ok, err = e.Verify(t.Context()); return err })
	return ok
}

// eachFamily runs a test in each, on a host of its own.
func eachFamily(t *testing.T, f func(*testing.T, *testbed.Host, bool)) {
	for _, v6 := range []bool{false, true} {
		t.Run(testbed.Family(v6), func(t *testing.T) { f(t, testbed.NewHostsT(t, "node")[0], v6) })
	}
}

// TestSync: rules come, change and go; nothing is written that is there; another process takes over.
func TestSync(t *testing.T) {
	eachFamily(t, func(t *testing.T, h *testbed.Host, v6 bool) {
		list := func() string { return h.Run(t, "nft", "list", "ruleset") }
		leftover := func() (left bool) {
			h.DoT(t, func() (err error) { left, err = (&Engine{IPv6: v6}).Leftover(t.Context()); return err })
			return left
		}
		e := &Engine{IPv6: v6}
		syncOn(t, h, e, lab.Whole())
		if now := list(); now != "" || leftover() {
			t.Errorf("an engine without Services has written:\n%s", now)
		}
		one, two := lab.Plain(v6, 1, 1, 2), lab.Plain(v6, 2, 3)
		syncOn(t, h, e, lab.Whole(one, two))
		n := e.Stats().Transactions
		syncOn(t, h, e, lab.Whole(one, two))
		if got := e.Stats(); got.Transactions != n || got.Rules == 0 || got.Elements == 0 {
			t.Errorf("after the same again: %+v, want %d transactions", got, n)
		}
		for range 2 { // the second asks for the generation alone
			if !verifyOn(t, h, e) {
				t.Error("not verified")
			}
		}
		syncOn(t, h, e, lb.Delta{Removed: []*lb.Service{&one}})
		if now := list(); strings.Contains(now, "default/s1") || !strings.Contains(now, "default/s2") || !leftover() {
			t.Errorf("after a Service has gone:\n%s", now)
		}
		if !verifyOn(t, h, e) {
			t.Error("not verified after a change")
		}
		syncOn(t, h, &Engine{IPv6: v6}, lab.Whole()) // another process
		if now := list(); now != "" || leftover() {
			t.Errorf("after a process without Services has started:\n%s", now)
		}
	})
}

// TestOtherNode: a node with other pods gets other rules of the Services that have not changed.
func TestOtherNode(t *testing.T) {
	eachFamily(t, func(t *testing.T, h *testbed.Host, v6 bool) {
		e, s := &Engine{IPv6: v6}, lab.Plain(v6, 1, 1)
		lab.Also(&s, lab.At(lab.IP(v6, "external", 1), 443), lb.ExternalIP, true)
		for _, n := range []int{1, 2} {
			pods := netip.PrefixFrom(lab.IP(v6, "pod", n<<8), lab.PodNet(v6).Bits()+8).Masked()
			h.DoT(t, func() error {
				return e.Sync(t.Context(), lab.Whole(s), lb.Node{PodCIDRs: []netip.Prefix{pods}})
			})
			list := h.Run(t, "nft", "list", "ruleset")
			got := [2]int{strings.Count(list, "from pods of this node"), strings.Count(list, pods.String())}
			if got != [2]int{2, 2} { // of the chain outside, and of the Service
				t.Errorf("of %d rules for pods %d are for %s, want 2 of 2:\n%s", got[0], got[1], pods, list)
			}
		}
	})
}

// TestDamage: every damage to the table is noticed and repaired, and the tables of other programs are none.
func TestDamage(t *testing.T) {
	eachFamily(t, func(t *testing.T, h *testbed.Host, v6 bool) {
		of := map[bool]string{false: "ip ", true: "ip6 "}[v6] + table + " "
		e, s := &Engine{IPv6: v6}, lab.Plain(v6, 1, 1, 2)
		syncOn(t, h, e, lab.Whole(s))
		for _, damage := range []string{
			"flush ruleset", "delete table " + of, "flush chain " + of + "prerouting", "flush map " + of + "services",
			"add rule " + of + "prerouting accept", "insert rule " + of + "unserved return", "add chain " + of + "mine",
			"flush set " + of + "cluster-ips",
		} {
			h.Run(t, "nft", damage)
			if verifyOn(t, h, e) {
				t.Errorf("not noticed: %s", damage)
			}
			syncOn(t, h, e, lb.Delta{})
			if !verifyOn(t, h, e) || !strings.Contains(h.Run(t, "nft", "list", "ruleset"), "default/s1") {
				t.Fatalf("not repaired: %s", damage)
			}
		}
		h.Run(t, "nft", "add table inet other; add chain inet other c { type filter hook input priority -200; }")
		if !verifyOn(t, h, e) {
			t.Error("the table of another program counts as damage")
		}
		for range 2 {
			h.DoT(t, func() error { return Cleanup(t.Context()) })
		}
		if now := h.Run(t, "nft", "list", "tables"); strings.TrimSpace(now) != "table inet other" {
			t.Errorf("after Cleanup there is %s", now)
		}
	})
}

// TestModel walks through random sets of Services. After each change the kernel holds what was written, and that is
// what would be written where no other set has been.
func TestModel(t *testing.T) {
	eachFamily(t, func(t *testing.T, h *testbed.Host, v6 bool) {
		changes := lab.Changes()
		seed := rand.Uint64()
		t.Logf("seed %d, %d changes", seed, changes)
		m := &lab.Model{Rand: rand.New(rand.NewPCG(seed, 0)), IPv6: v6}
		e := &Engine{IPv6: v6}
		for n := range changes {
			before := make(map[int]lb.Service)
			for i, s := range m.Now {
				before[i] = s
			}
			m.Change()
			if m.Rand.IntN(40) == 0 {
				e = &Engine{IPv6: v6} // another process
			}
			d := lab.Whole(m.Services()...)
			if e.content != nil && m.Rand.IntN(4) > 0 {
				d = m.Since(before)
			}
			h.DoT(t, func() error { return e.Sync(t.Context(), d, m.Node) })
			if !read(t, h, e) {
				t.Fatalf("change %d: the kernel does not hold what was written", n)
			}
			if e.content == nil {
				continue
			}
			fresh := newContent(&nft.Table{}, e.shape(m.Node))
			all := lab.Whole(m.Services()...)
			fresh.edit(fresh.shape, fresh.changes(&all, v6))
			if got, want := describe(e.content), describe(fresh); !slices.Equal(got, want) {
				t.Fatalf("change %d: %q\nwant %q", n, got, want)
			}
		}
		if list := h.Run(t, "nft", "list", "ruleset"); e.content != nil && !strings.Contains(list, table) {
			t.Errorf("nft lists %s", list)
		}
	})
}

// read verifies after another program has written, so that everything is read.
func read(t *testing.T, h *testbed.Host, e *Engine) bool {
	t.Helper()
	h.Run(t, "nft", "add table inet other")
	return verifyOn(t, h, e)
}

// describe lists all elements that a content has for Services, with the Service and without the turn where those are
// by number.
func describe(c *content) (out []string) {
	for id, w := range c.written {
		u := c.shape.render(w.service, w.cluster, w.local)
		names := make([]string, 0, len(u.chains))
		for name := range u.chains {
			names = append(names, fmt.Sprintf("%s %d", name, len(u.chains[name])))
		}
		slices.Sort(names)
		out = append(out, fmt.Sprint(id, names, len(u.clients)))
		for _, e := range u.entries {
			if strings.HasPrefix(e.set, setEndpoints) || strings.HasPrefix(e.set, setRotation) {
				e.Key, e.set = id.String(), e.set[:len(setRotation)]
			}
			out = append(out, fmt.Sprintf("%v %s %x %x", id, e.set, e.Key, e.Data))
		}
	}
	slices.Sort(out)
	return out
}

// TestOneChange: a change among 1,000 Services of ten endpoints each costs the elements that differ.
func TestOneChange(t *testing.T) {
	h := testbed.NewHostsT(t, "node")[0]
	services := make([]lb.Service, 1000)
	for i := range services {
		services[i] = lab.Plain(false, i+1)
		for b := range 10 {
			services[i].Backends = append(services[i].Backends, lab.Plain(false, 1, 10*i+b+1).Backends...)
		}
	}
	e := new(Engine)
	syncOn(t, h, e, lab.Whole(services...))
	old := services[500]
	other := lab.Plain(false, 1, 60000).Backends[0]
	for _, test := range []struct {
		name string
		do   func(*lb.Service)
		most int
	}{
		// An endpoint of this node is an element of "same", too, and what is replaced is two.
		{"another endpoint", func(s *lb.Service) { s.Backends[3] = other }, 4},
		{"an endpoint less", func(s *lb.Service) { s.Backends = append(s.Backends[:3:3], s.Backends[4:]...) }, 12},
		{"an endpoint more", func(s *lb.Service) { s.Backends = append(s.Backends, other) }, 10},
		{"nothing", func(*lb.Service) {}, 0},
	} {
		now := old
		now.Backends = slices.Clone(old.Backends)
		test.do(&now)
		got := events(t, h, func() { syncOn(t, h, e, lb.Delta{Changed: []lb.Change{{Old: &old, New: &now}}}) })
		if t.Logf("%s: %d events", test.name, got); got > test.most || (got == 0) != (test.most == 0) {
			t.Errorf("%s: %d events, want at most %d", test.name, got, test.most)
		}
		syncOn(t, h, e, lb.Delta{Changed: []lb.Change{{Old: &now, New: &old}}})
	}
	if !verifyOn(t, h, e) {
		t.Error("not verified")
	}
}

// events returns how many elements and rules nf_tables says that a change adds and deletes, one an event.
func events(t *testing.T, h *testbed.Host, do func()) (n int) {
	t.Helper()
	const group = 7 // NFNLGRP_NFTABLES (linux/netfilter/nfnetlink.h)
	var fd int
	h.DoT(t, func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
		return err
	})
	defer unix.Close(fd)
	testbed.Check(t, unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	testbed.Check(t, unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group))
	do()
	for buffer := make([]byte, 1<<16); ; { // the kernel has said everything when a transaction is over
		k, _, err := unix.Recvfrom(fd, buffer, 0)
		if errors.Is(err, unix.EAGAIN) {
			return n
		}
		testbed.Check(t, err)
		messages, err := syscall.ParseNetlinkMessage(buffer[:k])
		testbed.Check(t, err)
		for _, m := range messages {
			if m.Header.Type&0xff != unix.NFT_MSG_NEWGEN {
				n++
			}
		}
	}
}
