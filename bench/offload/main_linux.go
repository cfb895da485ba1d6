package main

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/iptables"
	"github.com/sluice-lb/sluice/lb"
)

// published is what can be compared in order of magnitude.
const published = `
Published for kube-proxy, on other machines:
  iptables, adding one rule set at 5,000 services (40,000 rules): 11 min; at 20,000: 5 h (Huawei, 2017; before iptables-restore)
  iptables, partial sync at 3,595 services and 138,792 endpoints: 2.84 s (kubernetes/kubernetes#138073)
  iptables with nf_tables, restore of 700,000 lines: 12.8 s (kubernetes/kubernetes#96018)
  ipvs, sync of 2,000 services: 65 % of a core (kubernetes/kubernetes#88212)
  nftables, adding one at 10,000 services: 8 min before, 141 ms after kubernetes/kubernetes#126013
`

func main() {
	if err := testbed.Reexec(); err != nil {
		fmt.Fprintln(os.Stderr, "offload:", err)
		os.Exit(2)
	}
	sizes := flag.String("services", "1000,5000,10000", "`NUMBERS` of Services to measure with")
	endpoints := flag.Int("endpoints", 10, "`NUMBER` of endpoints of each Service")
	rounds := flag.Int("rounds", 5, "`NUMBER` of times that each change is measured; the median counts")
	command := flag.String("iptables", "iptables", "`PROGRAM`: iptables, iptables-nft or iptables-legacy")
	flag.Parse()
	if err := run(*sizes, *endpoints, *rounds, *command); err != nil {
		fmt.Fprintln(os.Stderr, "offload:", err)
		os.Exit(1)
	}
}

func run(sizes string, endpoints, rounds int, command string) error {
	fmt.Printf("%s, %d endpoints each, milliseconds\n\n", command, endpoints)
	fmt.Printf("%9s %9s %10s %12s %12s %9s %9s %12s %16s\n", "Services", "rules", "first sync", "one endpoint", "one Service", "nothing", "verify", "(all read)", "first byte, us")
	for text := range strings.SplitSeq(sizes, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return fmt.Errorf("read the number of Services %q: %w", text, err)
		}
		if err := measure(n, endpoints, max(1, rounds), command); err != nil {
			return fmt.Errorf("measure %d Services: %w", n, err)
		}
	}
	fmt.Print(published)
	return nil
}

// lab is a node with an engine.
type lab struct {
	*testbed.Testbed
	engine   *iptables.Engine
	services []lb.Service
	node     lb.Node
}

func measure(n, endpoints, rounds int, command string) error {
	tb, err := testbed.New(testbed.Config{Pods: 1})
	if err != nil {
		return err
	}
	defer tb.Close()
	server, err := tb.Pods[0].WhoTCP(":8080")
	if err != nil {
		return err
	}
	defer server.Close()
	l := &lab{Testbed: tb, engine: &iptables.Engine{Command: command}, node: lb.Node{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}}
	for i := range n {
		l.services = append(l.services, service(i, endpoints))
	}
	// The last is asked, and has the one endpoint that there is.
	asked := service(n, 1)
	asked.Backends = []lb.Backend{{Addr: netip.AddrPortFrom(tb.Pods[0].Addr4, 8080), Ready: true}}
	l.services = append(l.services, asked)

	first, err := l.timed(1, func(int) error { return l.sync() })
	if err != nil {
		return err
	}
	rules := l.engine.Stats().NATRules + l.engine.Stats().FilterRules
	endpoint, err := l.timed(rounds, func(round int) error {
		l.services[n/2] = service(n/2, endpoints-1+round%2)
		return l.sync()
	})
	if err != nil {
		return err
	}
	one, err := l.timed(rounds, func(round int) error {
		if round%2 == 0 {
			l.services = append(l.services, service(n+1, endpoints))
		} else {
			l.services = l.services[:n+1]
		}
		return l.sync()
	})
	if err != nil {
		return err
	}
	nothing, err := l.timed(rounds, func(int) error { return l.sync() })
	if err != nil {
		return err
	}
	all, err := l.timed(1, func(int) error { return l.verify() })
	if err != nil {
		return err
	}
	verify, err := l.timed(rounds, func(int) error { return l.verify() })
	if err != nil {
		return err
	}
	connect, err := l.timed(20*rounds, func(int) error { return l.connect(asked.Addresses[0].Addr) })
	if err != nil {
		return err
	}
	fmt.Printf("%9d %9d %10.0f %12.1f %12.1f %9.2f %9.2f %12.1f %16.0f\n", n, rules, ms(first), ms(endpoint), ms(one), ms(nothing), ms(verify), ms(all), 1000*ms(connect))
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
	return l.Node.Do(func() error { return l.engine.Sync(context.Background(), l.services, l.node) })
}

func (l *lab) verify() error {
	return l.Node.Do(func() error {
		ok, err := l.engine.Verify(context.Background())
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
