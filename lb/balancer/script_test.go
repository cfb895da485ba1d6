package balancer

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// TestScripts runs testdata/*.txt (testbed.RunScript). The commands:
//
//	new [seed=N]                 a new Balancer
//	table                        make and apply a table of the lines that follow:
//	  node [ADDR...] [pods=PREFIX,...]
//	  service NS/NAME[:PORT] PROTOCOL [ipv6] [affinity=DURATION] [scheduler=NAME]
//	  address ADDR:PORT [kind=cluster|node-port|external|load-balancer] [local]
//	          [sources=PREFIX,...]
//	  backend ADDR:PORT [ready|unready|terminating|stopped] [local] [maintenance] [weight=N]
//	          [hint-node=here|elsewhere] [hint-zone=here|elsewhere]
//	pick PROTOCOL ADDR:PORT [n=N] [client=ADDR] [at=DURATION] [tried=X,Y] [as=X]
//	                             print the backends chosen, done at once unless
//	                             kept as X
//	spread (as pick)             print how often each backend was chosen
//	explain (as pick)            print Explain
//	done X [fail]                end what was kept as X
//	live X                       print whether X is live
//	lookup PROTOCOL ADDR:PORT    print the service and its address
//	eligible NS/NAME[:PORT] PROTOCOL
//	                             print both sets of eligible backends
//	verdicts PROTOCOL ADDR:PORT  print Verdicts
//	sweep at=DURATION            Sweep
//	stats                        print Stats
func TestScripts(t *testing.T) {
	testbed.Scripts(t, func(t *testing.T, script string) string {
		r := &runner{t: t, balancer: new(Balancer), choices: map[string]Choice{}}
		return testbed.RunScript(t, script, func(line int, command []string) string {
			r.line = line
			return r.run(command)
		})
	})
}

type runner struct {
	t        *testing.T
	line     int
	balancer *Balancer
	choices  map[string]Choice
}

func (r *runner) run(block []string) string {
	words := strings.Fields(block[0])
	args := parseArgs(words[1:])
	switch command := words[0]; command {
	case "new":
		seed, _ := strconv.ParseUint(args.named["seed"], 10, 64)
		r.balancer, r.choices = &Balancer{Seed: seed}, map[string]Choice{}
		return "ok"
	case "table":
		services, node := r.services(block[1:])
		table, err := lb.NewTable(refs(services), node)
		r.balancer.Update(table)
		if err != nil {
			return err.Error()
		}
		return "ok"
	case "pick":
		return r.pick(args, func(chosen []string) string { return strings.Join(chosen, " ") })
	case "spread":
		return r.pick(args, tally)
	case "explain":
		return r.balancer.Explain(r.flow(args))
	case "done":
		var err error
		if slices.Contains(args.plain, "fail") {
			err = errors.New("failed")
		}
		r.choice(args.plain[0]).Done(err)
		return "ok"
	case "live":
		return strconv.FormatBool(r.choice(args.plain[0]).Live())
	case "lookup":
		s, a, ok := r.balancer.Table().Lookup(r.flow(args).Frontend)
		if !ok {
			return "none"
		}
		return fmt.Sprintf("%s: %s %s", s.ID, a.Kind, a.Addr)
	case "eligible":
		return r.eligible(args)
	case "verdicts":
		s, a, _ := r.balancer.Table().Lookup(r.flow(args).Frontend)
		inside, outside := s.Verdicts(*a)
		return fmt.Sprintf("inside %s, outside %s", inside, outside)
	case "sweep":
		r.balancer.Sweep(r.duration(args.named["at"]))
		return "ok"
	case "stats":
		return r.stats()
	default:
		r.t.Fatalf("line %d: unknown command %q", r.line, command)
		return ""
	}
}

// pick runs pick and spread.
func (r *runner) pick(args args, show func([]string) string) string {
	n := 1
	if s := args.named["n"]; s != "" {
		n, _ = strconv.Atoi(s)
	}
	var chosen []string
	for range n {
		c, err := r.balancer.Pick(r.flow(args))
		if err != nil {
			return "error: " + err.Error()
		}
		chosen = append(chosen, c.Backend().String())
		if name := args.named["as"]; name != "" {
			r.choices[name] = c
		} else {
			c.Done(nil)
		}
	}
	return show(chosen)
}

// tally sorts by text, so that expected outputs do not depend on the order of
// turns.
func tally(chosen []string) string {
	count := map[string]int{}
	for _, c := range chosen {
		count[c]++
	}
	var lines []string
	for c, n := range count {
		lines = append(lines, fmt.Sprintf("%s %d", c, n))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (r *runner) stats() string {
	var w strings.Builder
	for _, s := range r.balancer.Counters().All() {
		fmt.Fprintf(&w, "%s picks=%d failures=%d nobackend=%d", s.ID, s.Picks, s.Failures, s.NoBackend)
		if s.NoLocalBackend+s.NotAllowed > 0 { // few scripts are about these
			fmt.Fprintf(&w, " nolocalbackend=%d notallowed=%d", s.NoLocalBackend, s.NotAllowed)
		}
		fmt.Fprintf(&w, " inflight=%d remembered=%d evicted=%d\n", s.InFlight, s.AffinityEntries, s.AffinityEvicted)
		for _, b := range s.Backends {
			fmt.Fprintf(&w, "  %s picks=%d failures=%d inflight=%d live=%t eligible=%t",
				b.Addr, b.Picks, b.Failures, b.InFlight, b.Live, b.Eligible)
			if b.EligibleLocal {
				w.WriteString(" eligiblelocal=true")
			}
			w.WriteString("\n")
		}
	}
	if w.Len() == 0 {
		return "none"
	}
	return w.String()
}

func (r *runner) eligible(args args) string {
	s, ok := r.balancer.Table().Service(r.service(args).ID)
	if !ok {
		r.t.Fatalf("line %d: no such service", r.line)
	}
	list := func(backends []lb.Backend) string {
		text := ""
		for _, b := range backends {
			text += " " + b.Addr.String()
		}
		return text
	}
	return "cluster:" + list(s.Eligible()) + "\nlocal:" + list(s.EligibleLocal())
}

func (r *runner) flow(args args) Flow {
	f := Flow{Frontend: lb.Frontend{Protocol: r.protocol(args.plain[0]), Addr: r.addr(args.plain[1])}}
	if s := args.named["client"]; s != "" {
		f.Client = netip.MustParseAddr(s)
	}
	f.Now = r.duration(args.named["at"])
	if s := args.named["tried"]; s != "" {
		f.Tried = new(Tried)
		for name := range strings.SplitSeq(s, ",") {
			f.Tried.Add(r.choice(name))
		}
	}
	return f
}

func (r *runner) choice(name string) Choice {
	c, ok := r.choices[name]
	if !ok {
		r.t.Fatalf("line %d: nothing was kept as %q", r.line, name)
	}
	return c
}
