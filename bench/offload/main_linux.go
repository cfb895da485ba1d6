package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/iptables"
	"github.com/sluice-lb/sluice/kernelmodes/ipvs"
	"github.com/sluice-lb/sluice/lb"
)

// published is what can be compared in order of magnitude.
const published = `
Published for kube-proxy, on other machines, and to be compared in order of magnitude only:

| mode | what | figure | source |
|---|---|---|---|
| iptables | adding one Service at 5,000 Services, 40,000 rules | 11 min | Huawei, 2017, before iptables-restore (kubernetes/community#692) |
| iptables | the same at 20,000 Services, 160,000 rules | 5 h | the same |
| iptables | partial sync at 3,595 Services, 138,792 endpoints | 2.84 s | kubernetes/kubernetes#138073 |
| iptables | nf_tables, restore of 700,000 lines | 12.8 s | kubernetes/kubernetes#96018 |
| ipvs | adding one Service | the same at every size | kubernetes/community#692 |
| ipvs | sync of 1,500 Services with external IPs | 12 s, later 0.73 s | kubernetes/kubernetes#84906 |
| ipvs | sync of 2,000 Services | 65 % of a core | kubernetes/kubernetes#88212 |
| ipvs | sync of 4,000 endpoints | 20 s | kubernetes/kubernetes#73382 |
| nftables | adding one Service at 10,000 | 8 min, later 141 ms | kubernetes/kubernetes#126013 |
`

func main() {
	if err := testbed.Reexec(); err != nil {
		fmt.Fprintln(os.Stderr, "offload:", err)
		os.Exit(2)
	}
	modes := flag.String("modes", "iptables", "`MODES` to measure: iptables, ipvs")
	sizes := flag.String("services", "1000,5000,10000", "`NUMBERS` of Services to measure with")
	endpoints := flag.Int("endpoints", 10, "`NUMBER` of endpoints of each Service")
	rounds := flag.Int("rounds", 5, "`NUMBER` of times that each change of one Service is measured; the median counts")
	command := flag.String("iptables", "iptables", "`PROGRAM`: iptables, iptables-nft or iptables-legacy")
	others := flag.Bool("published", true, "print what others have published")
	flag.Parse()
	if err := run(*modes, *sizes, *endpoints, *rounds, *command); err != nil {
		fmt.Fprintln(os.Stderr, "offload:", err)
		os.Exit(1)
	}
	if *others {
		fmt.Print(published)
	}
}

func run(modes, sizes string, endpoints, rounds int, command string) error {
	fmt.Printf("%s, %s, %d endpoints each, load of the machine %s; milliseconds, the median of %d rounds, first sync and verify once:\n\n", machine(), command, endpoints, load(), rounds)
	fmt.Println("| mode | Services | rules, or virtual and real servers | first sync | one endpoint | one Service | nothing | verify | verify, all read | first byte, us |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|---|")
	for mode := range strings.SplitSeq(modes, ",") {
		for text := range strings.SplitSeq(sizes, ",") {
			n, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil {
				return fmt.Errorf("read the number of Services %q: %w", text, err)
			}
			if err := measure(mode, n, endpoints, max(1, rounds), command); err != nil {
				return fmt.Errorf("measure %d Services by %s: %w", n, mode, err)
			}
		}
	}
	return nil
}

// machine says where the figures are from.
func machine() string {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease") // it is said to be unknown then
	where := "this host"
	if os.Getenv("SLUICE_VM") != "" {
		where = "in the VM of bench/vm"
	}
	return fmt.Sprintf("%s, Linux %s, %d CPUs", where, cmp.Or(strings.TrimSpace(string(release)), "unknown"), runtime.NumCPU())
}

// load is the number of processes that were waiting for a CPU in the last minute.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg") // it is said to be unknown then
	first, _, ok := strings.Cut(string(text), " ")
	if !ok {
		return "unknown"
	}
	return first
}

// engine is what forwards.
type engine interface {
	Sync(context.Context, lb.Delta, lb.Node) error
	Verify(context.Context) (bool, error)
}

// lab is a node with an engine.
type lab struct {
	*testbed.Testbed
	engine
	size     func() string // of what is in the kernel
	table    *lb.Table
	services []lb.Service
	node     lb.Node
}

// newLab returns a node whose engine has nothing to do yet. The caller closes it.
func newLab(mode, command string) (*lab, error) {
	tb, err := testbed.New(testbed.Config{Pods: 1})
	if err != nil {
		return nil, err
	}
	l := &lab{Testbed: tb, table: new(lb.Table), node: lb.Node{
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
		Addresses: []netip.Addr{tb.Node.Addr4},
	}}
	var probe error
	switch mode {
	case "iptables":
		e := &iptables.Engine{Command: command}
		l.engine, l.size = e, func() string { s := e.Stats(); return fmt.Sprint(s.NATRules + s.FilterRules) }
		probe = tb.Node.Do(func() error { _, err := e.Probe(context.Background()); return err })
	case "ipvs":
		e := &ipvs.Engine{Command: command}
		l.engine, l.size = e, func() string { s := e.Stats(); return fmt.Sprintf("%d + %d", s.VirtualServers, s.RealServers) }
		probe = tb.Node.Do(func() error { _, err := e.Probe(context.Background()); return err })
	default:
		probe = fmt.Errorf("unknown mode %q", mode)
	}
	if probe != nil {
		tb.Close()
		return nil, probe
	}
	return l, nil
}

func measure(mode string, n, endpoints, rounds int, command string) error {
	l, err := newLab(mode, command)
	if err != nil {
		return err
	}
	defer l.Close()
	server, err := l.Pods[0].WhoTCP(":8080")
	if err != nil {
		return err
	}
	defer server.Close()
	for i := range n {
		l.services = append(l.services, service(i, endpoints))
	}
	// The last is asked, and has the one endpoint that there is.
	asked := service(n, 1)
	asked.Backends = []lb.Backend{{Addr: netip.AddrPortFrom(l.Pods[0].Addr4, 8080), Ready: true}}
	l.services = append(l.services, asked)

	first, err := l.timed(1, func(int) error { return l.sync() })
	if err != nil {
		return err
	}
	size := l.size()
	var took []time.Duration
	for _, what := range []struct {
		rounds int
		do     func(round int) error
	}{
		{rounds, func(round int) error { // one endpoint
			l.services[n/2] = service(n/2, endpoints-1+round%2)
			return l.sync()
		}},
		{rounds, func(round int) error { // one Service
			if l.services = l.services[:n+1]; round%2 == 0 {
				l.services = append(l.services, service(n+1, endpoints))
			}
			return l.sync()
		}},
		{rounds, func(int) error { return l.sync() }}, // nothing
		{1, func(int) error { return l.verify() }},    // all read
		{1, func(int) error { return l.verify() }},
		{20 * rounds, func(int) error { return l.connect(asked.Addresses[0].Addr) }},
	} {
		d, err := l.timed(what.rounds, what.do)
		if err != nil {
			return err
		}
		took = append(took, d)
	}
	fmt.Printf("| %s | %d | %s | %.0f | %.1f | %.1f | %.2f | %.2f | %.1f | %.0f |\n", mode, n, size,
		ms(first), ms(took[0]), ms(took[1]), ms(took[2]), ms(took[4]), ms(took[3]), 1000*ms(took[5]))
	return nil
}

// timed returns the median of how long something takes.
func (l *lab) timed(rounds int, do func(round int) error) (time.Duration, error) {
	var took []time.Duration
	for round := range rounds {
		start := time.Now()
		if err := do(round); err != nil {
			return 0, err
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (l *lab) sync() error {
	table, d, err := l.table.Next(l.services, l.node)
	if err != nil {
		return err
	}
	l.table = table
	return l.Node.Do(func() error { return l.Sync(context.Background(), d, l.node) })
}

func (l *lab) verify() error {
	return l.Node.Do(func() error {
		ok, err := l.Verify(context.Background())
		if err == nil && !ok {
			err = fmt.Errorf("the rules are not what was written")
		}
		return err
	})
}

// connect asks the Service and reads the first byte of its answer.
func (l *lab) connect(addr netip.AddrPort) error {
	c, err := l.Client.Dial(context.Background(), "tcp", addr.String())
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Read(make([]byte, 1))
	return err
}

// service returns Service number i, whose endpoints do not exist.
func service(i, endpoints int) lb.Service {
	s := lb.Service{ID: lb.ID{Namespace: "default", Name: fmt.Sprint("service-", i), Protocol: lb.TCP}}
	addr := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
	s.Addresses = []lb.Address{{Addr: netip.AddrPortFrom(addr, 80)}}
	for k := range endpoints {
		pod := netip.AddrFrom4([4]byte{10, byte(128 + i>>8), byte(i), byte(1 + k)})
		s.Backends = append(s.Backends, lb.Backend{Addr: netip.AddrPortFrom(pod, 8080), Ready: true})
	}
	return s
}
