package agent

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/policies"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// request runs a command that changes what is requested.
func (w *world) request(words []string) (known bool) {
	args := words[1:]
	switch words[0] {
	case "service":
		w.edit(args[0], args[1:])
	case "delete":
		for _, name := range args {
			w.service(name)
			delete(w.desired, name)
		}
	case "node":
		w.hosts[args[0]] = nil
		for _, e := range args[2:] {
			w.hosts[args[0]] = append(w.hosts[args[0]],
				lb.Host{Service: w.service(args[1]).ID.Service(), Addr: w.endpoint(e).Addr.Addr()})
		}
	default:
		return false
	}
	return true
}

// service returns a Service that is requested.
func (w *world) service(name string) *lb.Service {
	if w.desired[name] == nil {
		w.t.Fatalf("line %d: no Service is %q", w.line, name)
	}
	return w.desired[name]
}

// edit makes a Service, or another one of it.
func (w *world) edit(name string, words []string) {
	s, requests := new(lb.Service), new(lb.Policies)
	if was := w.desired[name]; was != nil {
		*s, *requests = *was, *was.Policies
	} else {
		s.Namespace = "default"
		s.Name, s.Port, _ = strings.Cut(name, ":")
	}
	s.Policies = requests
	fresh := false // it has other addresses than before
	address := func(a lb.Address) {
		if !fresh {
			s.Addresses, fresh = nil, true
		}
		s.Addresses = append(s.Addresses, a)
	}
	for _, word := range words {
		name, value, named := strings.Cut(word, "=")
		switch at := slices.Index([]string{"TCP", "UDP", "SCTP"}, word); {
		case at >= 0:
			s.Protocol = []lb.Protocol{lb.TCP, lb.UDP, lb.SCTP}[at]
		case strings.Contains(name, ":"):
			address(w.address(word))
		case !named:
			w.t.Fatalf("line %d: unknown word %q", w.line, word)
		case name == "nodeport":
			address(nodePort(uint16(w.number(value))))
		case name == "endpoints":
			s.Backends = nil
			for _, e := range strings.FieldsFunc(value, func(r rune) bool { return r == ',' }) {
				s.Backends = append(s.Backends, w.endpoint(e))
			}
		case name == "affinity":
			s.AffinityTimeout = int64(w.duration(value))
		case name == "created":
			s.Created = int64(w.number(value))
		case name == "path":
			requests.DataPath = value
		default:
			testbed.Check(w.t, policies.Find(name).Set(requests, value))
		}
	}
	w.desired[name] = s
}

func (w *world) address(word string) (a lb.Address) {
	words := strings.Split(word, ",")
	a.Addr = netip.MustParseAddrPort(words[0])
	for _, word := range words[1:] {
		switch name, value, _ := strings.Cut(word, "="); name {
		case "external":
			a.Kind = lb.ExternalIP
		case "load-balancer":
			a.Kind = lb.LoadBalancerIP
		case "local":
			a.Local = true
		case "from":
			a.Sources = []netip.Prefix{netip.MustParsePrefix(value)}
		default:
			w.t.Fatalf("line %d: unknown word %q", w.line, word)
		}
	}
	return a
}

func (w *world) endpoint(word string) (b lb.Backend) {
	word, unready := strings.CutSuffix(word, "!")
	at, weight, weighs := strings.Cut(word, "*")
	if b.Ready, b.Serving = !unready, !unready; weighs {
		b.Weight = uint16(w.number(weight))
	}
	if strings.Contains(at, ":") {
		b.Addr = netip.MustParseAddrPort(at)
		return b
	}
	b.Addr = service(lb.TCP, "", 0, byte(w.number(at))).Backends[0].Addr
	return b
}

func (w *world) number(word string) uint64 {
	n, err := strconv.ParseUint(word, 10, 32)
	testbed.Check(w.t, err)
	return n
}

func (w *world) duration(word string) time.Duration {
	d, err := time.ParseDuration(word)
	testbed.Check(w.t, err)
	return d
}

func (w *world) path(word string) Path {
	p, ok := ParsePath(word)
	if !ok {
		w.t.Fatalf("line %d: no path is %q", w.line, word)
	}
	return p
}
