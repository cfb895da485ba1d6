package redirect

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// verifyPlan has members in every set and rules in every chain.
func verifyPlan(ipv6 bool) Plan {
	at := func(n int, port uint16) netip.AddrPort { return netip.AddrPortFrom(vip(ipv6, n), port) }
	node := func(port uint16) lb.Frontend { return tcp(netip.AddrPortFrom(unspecified(ipv6), port)) }
	return Plan{
		TCPPort:     40000,
		TCP:         manyTCP(ipv6, 3),
		Ported:      []Ported{{udp(at(1, 53)), 40001}, {udp(at(2, 53)), 40002}},
		Accept:      []lb.Frontend{node(30080), tcp(netip.AddrPortFrom(nodeAddr[ipv6], 30081))},
		Refuse:      []lb.Frontend{tcp(at(4, 80)), node(30082)},
		Drop:        []lb.Frontend{tcp(at(5, 80)), node(30083)},
		DropOutside: []lb.Frontend{tcp(at(1, 80)), node(30080)},
		Inside:      []netip.Prefix{podNet(ipv6)},
		Restricted:  []Restricted{{tcp(at(2, 80)), []netip.Prefix{podNet(ipv6)}}},
	}
}

// damage is something that others may do to what we wrote, and how they would take
// it back if that is not our business.
type damage struct {
	name     string
	do, undo func()
}

// damages returns all that is tried. ipt runs iptables in a table, ipset runs ipset.
func damages(t *testing.T, v variant, s shape) []damage {
	ipt := func(table string, args ...string) {
		t.Helper()
		output(t, v.command, append([]string{"-t", table}, args...)...)
	}
	var out []damage
	add := func(name string, do, undo func()) { out = append(out, damage{name, do, undo}) }
	for _, table := range tables {
		add(table.name+" flushed", func() { ipt(table.name, "-F") }, nil)
		for _, c := range table.chains {
			chain := s.chain(c)
			if c != chainSCTP { // which is empty
				add(chain+" flushed", func() { ipt(table.name, "-F", chain) }, nil)
			}
			add("a rule appended to "+chain, func() { ipt(table.name, "-A", chain, "-j", "ACCEPT") }, nil)
			add("a rule put first in "+chain, func() { ipt(table.name, "-I", chain, "-j", "RETURN") }, nil)
		}
	}
	inBucket := verifyPlan(v.ipv6).Ported[0].Frontend.Addr.Addr()
	for _, chain := range []string{s.chain(chainUDP),
		netfilter.BucketOf("nat", s.chain(chainUDP), inBucket, buckets).Chain} {
		add("a rule deleted from "+chain, func() { ipt("nat", "-D", chain, "1") }, nil)
		add("a rule replaced in "+chain, func() { ipt("nat", "-R", chain, "1", "-j", "ACCEPT") }, nil)
		add("a rule appended to "+chain, func() { ipt("nat", "-A", chain, "-j", "ACCEPT") }, nil)
	}
	add("rules exchanged", func() {
		rule := strings.Fields(strings.Split(output(t, v.command, "-t", "nat", "-S", s.chain(chainSteer)), "\n")[1])[2:]
		ipt("nat", "-D", s.chain(chainSteer), "1")
		ipt("nat", append([]string{"-A", s.chain(chainSteer)}, rule[:2]...)...)
	}, nil)
	for _, j := range jumps {
		where := j.Table + " " + j.From
		add(where+": jump deleted", func() { ipt(j.Table, "-D", j.From, "1") }, nil)
		add(where+": jump of another kind", func() { ipt(j.Table, "-R", j.From, "1", "-p", "tcp", "-j", j.To) }, nil)
	}
	add("a chain deleted", func() {
		ipt("nat", "-F", s.chain(chainSteer))
		ipt("nat", "-F", s.chain(chainSCTP))
		ipt("nat", "-X", s.chain(chainSCTP))
	}, nil)
	clear := func() {
		for _, table := range tables {
			ipt(table.name, "-F")
			ipt(table.name, "-X")
		}
	}
	add("all chains deleted", clear, nil)
	add("a firewall reloaded", func() {
		clear()
		for _, table := range tables {
			feed(t, "*"+table.name+"\n:FIREWALL - [0:0]\n-A FIREWALL -p tcp -j RETURN\n-A OUTPUT -j FIREWALL\nCOMMIT\n",
				v.command+"-restore")
		}
	}, clear)
	if !strings.Contains(v.command, "legacy") {
		add("nft flush ruleset", func() { output(t, "nft", "flush", "ruleset") }, nil)
	}
	if v.noSets {
		return out
	}
	return append(out, setDamages(t, v, s, clear)...)
}

func setDamages(t *testing.T, v variant, s shape, clear func()) []damage {
	var out []damage
	add := func(name string, do func()) { out = append(out, damage{name, do, nil}) }
	ipset := func(args ...string) {
		t.Helper()
		output(t, "ipset", args...)
	}
	one, other := vip(v.ipv6, 1).String()+",tcp:80", vip(v.ipv6, 9).String()+",tcp:80"
	for name, m := range map[string]struct{ ours, foreign string }{
		setTCP:                        {one, other},
		setRefuse:                     {vip(v.ipv6, 4).String() + ",tcp:80", other},
		setDrop:                       {vip(v.ipv6, 5).String() + ",tcp:80", vip(v.ipv6, 9).String() + ",udplite:80"},
		verdictAccept.nodeSet(lb.TCP): {"30080", "30090"},
		setUDPPorts:                   {"40001", "40009"},
		setInside:                     {podNet(v.ipv6).String(), clientAddr[v.ipv6].String()},
		setRestricted:                 {vip(v.ipv6, 2).String() + ",tcp:80", other},
		setAllowed: {vip(v.ipv6, 2).String() + ",tcp:80," + podNet(v.ipv6).String(), one + "," +
			podNet(v.ipv6).String()},
	} {
		set := s.set(name)
		add(name+" flushed", func() { ipset("flush", set) })
		add("a member deleted from "+name, func() { ipset("del", set, m.ours) })
		add("a member added to "+name, func() { ipset("add", set, m.foreign) })
		add("a member of "+name+" replaced", func() { ipset("del", set, m.ours); ipset("add", set, m.foreign) })
	}
	destroy := func(set string) {
		t.Helper()
		// nft lets go of sets some time after the rules.
		for deadline := time.Now().Add(patience); ; {
			msg, err := exec.Command("ipset", "destroy", set).CombinedOutput()
			if err == nil {
				return
			} else if !strings.Contains(string(msg), "in use") || time.Now().After(deadline) {
				t.Fatalf("destroy %s: %s", set, msg)
			}
		}
	}
	add("rules and sets destroyed", func() {
		clear()
		for _, name := range slices.Concat(setGroups...) {
			destroy(s.set(name))
		}
	})
	add("rules deleted and a set destroyed", func() { clear(); destroy(s.set(setTCP)) })
	return out
}

// TestVerify does every damage, one after another.
func TestVerify(t *testing.T) {
	eachIPTables(t, func(t *testing.T, v variant) {
		newNode(t)
		s := v.iptables()
		verified(t, s, false, "before Sync")
		plan := verifyPlan(v.ipv6)
		syncPlan(t, s, plan)
		want := sorted(savedBy(t, v.command))
		verified(t, s, true, "after Sync")
		verified(t, s, true, "once more")
		for _, d := range damages(t, v, s.kernel.shape) {
			d.do()
			verified(t, s, false, "with %s", d.name)
			syncPlan(t, s, plan)
			verified(t, s, true, "after mending %s", d.name)
			if d.undo != nil {
				first := firstRules(savedBy(t, v.command))
				for _, j := range jumps {
					if rule := first[netfilter.Place{Table: j.Table, Chain: j.From}]; netfilter.Target(netfilter.Words(rule)) != j.To {
						t.Errorf("after mending %s, chain %s of table %s begins with %q", d.name, j.From, j.Table, rule)
					}
				}
				d.undo()
				syncPlan(t, s, plan) // nothing, or what taking it back took with it
				if ok, _ := s.Verify(t.Context()); !ok {
					syncPlan(t, s, plan)
				}
			}
			if diff := cmp.Diff(want, sorted(savedBy(t, v.command))); diff != "" {
				t.Fatalf("after mending %s (-want +got):\n%s", d.name, diff)
			}
		}
	})
}

// firstRules returns the first rule of each chain in what iptables-save prints.
func firstRules(save string) map[netfilter.Place]string {
	first, table := make(map[netfilter.Place]string), ""
	for line := range strings.Lines(save) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = name
		}
		if !strings.HasPrefix(line, "-A ") {
			continue
		}
		if at := (netfilter.Place{Table: table, Chain: netfilter.Words(line)[1]}); first[at] == "" {
			first[at] = line
		}
	}
	return first
}

// TestVerifyWhileAnotherTries: what a process that starts tries is no damage to what serves, which leaves it alone also
// while it repairs its own. What is left of it goes with the next Probe.
func TestVerifyWhileAnotherTries(t *testing.T) {
	eachIPTables(t, func(t *testing.T, v variant) {
		newNode(t)
		s := v.iptables()
		plan := verifyPlan(v.ipv6)
		syncPlan(t, s, plan)
		for _, table := range tables {
			text := "*" + table.name + "\n"
			for _, c := range table.chains {
				text += ":" + probePrefix + c + " - [0:0]\n"
			}
			feed(t, text+"-A "+probePrefix+table.chains[0]+" -p tcp -j RETURN\nCOMMIT\n", v.command+"-restore", "--noflush")
		}
		verified(t, s, true, "while another tries")
		output(t, v.command, "-t", "nat", "-F", s.kernel.shape.chain(chainSteer))
		verified(t, s, false, "with a chain flushed")
		syncPlan(t, s, plan)
		for _, table := range tables {
			for _, c := range table.chains {
				output(t, v.command, "-t", table.name, "-S", probePrefix+c)
			}
		}
		_, err := v.iptables().Probe(t.Context())
		check(t, err)
		if save := output(t, v.command+"-save"); strings.Contains(save, probePrefix) {
			t.Errorf("after another Probe there is\n%s", save)
		}
		verified(t, s, true, "after another Probe")
	})
}

func BenchmarkVerify(b *testing.B) {
	for _, v := range append(nftVariants, variants()[:3]...) {
		for _, n := range []int{10, 10000} {
			b.Run(fmt.Sprintf("%s/%d", v.name, n), func(b *testing.B) {
				newNode(b)
				s := v.steerer()
				plan := Plan{TCPPort: 40000, TCP: manyTCP(v.ipv6, n)}
				if err := s.Sync(b.Context(), plan.Update()); err != nil {
					b.Fatal(err)
				}
				for b.Loop() {
					if ok, err := s.Verify(b.Context()); !ok || err != nil {
						b.Fatal(ok, err)
					}
				}
			})
		}
	}
}

// BenchmarkChange is one frontend more and one less, among 10,000.
func BenchmarkChange(b *testing.B) {
	newNode(b)
	s := &IPTables{}
	check(b, s.Sync(b.Context(), Plan{TCPPort: 40000, TCP: manyTCP(false, 10000)}.Update()))
	one := []Entry{{Frontend: tcp(netip.AddrPortFrom(vip(false, 10000), 80)), Action: Redirect}}
	changes := []Update{{Host: Host{TCPPort: 40000}, Add: one}, {Host: Host{TCPPort: 40000}, Remove: one}}
	for i := 0; b.Loop(); i++ {
		check(b, s.Sync(b.Context(), changes[i%2]))
	}
}

// BenchmarkChangeUDP is one UDP frontend more and one less, among 1,000, and with nftables 10,000. It also
// tells the processor time of a change, that of iptables included.
func BenchmarkChangeUDP(b *testing.B) {
	for name, s := range map[string]steers{"iptables-nft": &IPTables{Command: "iptables-nft"},
		"iptables-legacy": &IPTables{Command: "iptables-legacy"}, "nftables": new(NFTables)} {
		b.Run(name, func(b *testing.B) {
			newNode(b)
			many := 1000
			if name == "nftables" {
				many = 10000
			}
			var all []Ported
			for i := range many {
				all = append(all, Ported{udp(netip.AddrPortFrom(vip(false, i), 53)), uint16(20000 + i)})
			}
			check(b, s.Sync(b.Context(), Plan{TCPPort: 40000, Ported: all}.Update()))
			one := []Entry{{Frontend: udp(netip.AddrPortFrom(vip(false, many), 53)), Action: Redirect, Port: 41000}}
			changes := []Update{{Host: Host{TCPPort: 40000}, Add: one}, {Host: Host{TCPPort: 40000}, Remove: one}}
			before := processorTime(b)
			for i := 0; b.Loop(); i++ {
				check(b, s.Sync(b.Context(), changes[i%2]))
			}
			b.ReportMetric((processorTime(b)-before).Seconds()*1000/float64(b.N), "cpu-ms/op")
		})
	}
}

// processorTime is that of this process and of those that it has run.
func processorTime(b *testing.B) (sum time.Duration) {
	b.Helper()
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		check(b, unix.Getrusage(who, &u))
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}
