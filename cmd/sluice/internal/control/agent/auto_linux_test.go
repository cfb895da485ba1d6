package agent // on Linux: elsewhere user space, which has no timeouts, is the only path

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/policies"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// values are some of what policies can be requested with, by their words.
var values = map[string][]string{
	"scheduler": {"rr", "lc", "maglev", "sed"}, "slow-start": {"0s", "30s"}, "outlier-ejection": {"true", "false"},
	"udp-responses": {"0", "1"}, "hold": {"0s", "5s"}, "hold-connections": {"10"}, "max-endpoint-connections": {"0", "5"},
	"max-pending-connections": {"10"}, "queue-timeout": {"1s"}, "max-connections": {"100"}, "transparent": {"true"},
	"proxy-protocol": {"v1", "v2"}, "access-log": {"all"}, "on-endpoint-removed": {"keep", "reset"}, "connect-timeout": {"1s"},
	"connect-attempts": {"2"}, "retry-refused": {"true"}, "idle-timeout": {"0s", "1m"}, "udp-idle-timeout": {"5s"}, "tcp-keepalive": {"5s"},
	"max-connection-duration": {"1h"}, "readiness-probe": {"tcpSocket: {}"},
}

// random returns policies of which few, or many, are requested.
func random(t *testing.T, r *rand.Rand) *lb.Policies {
	p := new(lb.Policies)
	few := 1 + r.IntN(12)
	for _, policy := range policies.All() {
		if some := values[policy.Word]; some != nil && r.IntN(few) == 0 {
			testbed.Check(t, policy.Set(p, some[r.IntN(len(some))]))
		}
	}
	return p
}

// asker returns a Service that requests something at random, on Auto.
func asker(t *testing.T, r *rand.Rand) *lb.Service {
	s := requesting(service([]lb.Protocol{lb.TCP, lb.UDP, lb.SCTP}[r.IntN(3)], "s", 1, 1, 2), "")
	if r.IntN(4) > 0 {
		s.Policies = random(t, r)
	}
	s.Policies.DataPath = "auto"
	for i := range s.Backends {
		s.Backends[i].Local = r.IntN(2) == 0
		s.Backends[i].Weight = uint16(r.IntN(5) / 4)
	}
	return s
}

// host returns what a host has, at random.
func host(r *rand.Rand) (can abilities) {
	for _, path := range append(Paths(), userspaceSCTP) {
		if r.IntN(5) == 0 {
			can[path] = errors.New("not here")
		}
	}
	return can
}

// lacks returns how many policies a path does not have of those that a Service requests.
func lacks(s *lb.Service, path Path) int { return len(policies.Shortfalls(s, path.String())) }

// TestAuto: of the paths that a host has Auto takes one that lacks least, and the cheapest of these; if there is one
// that lacks nothing, it lacks nothing. What endpoints are to hear binds it to user space. The reason is true.
func TestAuto(t *testing.T) {
	r := seeded(t)
	seen := make(map[Reason]int)
	for range 20_000 {
		s, can, given := asker(t, r), host(r), new(lb.Policies)
		if r.IntN(4) == 0 {
			given = random(t, r)
			given.ProxyProtocol, given.Transparent = "", lb.NotGiven // for which there are no flags
		}
		c := choose(s, Userspace, &can, given)
		asked, its := asking(s, given), can.of(s)
		var there []Path
		for _, path := range costs {
			if its[path] == nil {
				there = append(there, path)
			}
		}
		seen[c.Reason]++
		if len(there) == 0 {
			if c.Reason != ByHost || c.Path != IPVS && c.Path != None {
				t.Fatalf("%+v on a host without any path: %+v", *s.Policies, c)
			}
			continue
		}
		best := slices.MinFunc(there, func(a, b Path) int { return lacks(asked, a) - lacks(asked, b) }) // the first
		if policies.NeedsUserspace(asked) != nil && its[Userspace] == nil {
			best = Userspace
		}
		if c.Path != best {
			t.Fatalf("%s %+v, given %+v, of %v: %+v, want %s", s.Protocol, *s.Policies, *given, there, c, best)
		}
		ideal := choose(s, Userspace, &everything, given).Path
		if (c.Reason == ByHost) != (c.Path != ideal) || c.Reason == ByPolicy && c.Path == costs[0] ||
			c.Reason == ByCost && c.Path != costs[0] || c.Path == IPTables && c.Reason != ByHost {
			t.Fatalf("%s %+v, given %+v, of %v: %+v, ideal %s", s.Protocol, *s.Policies, *given, there, c, ideal)
		}
	}
	for _, reason := range []Reason{ByCost, ByPolicy, ByHost} {
		if seen[reason] < 100 {
			t.Errorf("%d decisions by %s, want more: %v", seen[reason], reason, seen)
		}
	}
}

// TestAutoReasons: what is said of usual Services.
func TestAutoReasons(t *testing.T) {
	all, old := abilities{}, abilities{NFTables: errors.New("no nf_tables"), Queue: errors.New("no nf_tables")}
	for _, c := range []struct {
		of       lb.Protocol
		requests lb.Policies
		given    lb.Policies
		can      abilities
		want     string
	}{
		{lb.TCP, lb.Policies{}, lb.Policies{}, all, "nftables, cost: auto: it has all that is requested, and none costs less"},
		{lb.TCP, lb.Policies{Scheduler: "lc"}, lb.Policies{}, all,
			"queue, policy: auto: the cheapest that has scheduler (annotation sluice.io/scheduler)"},
		{lb.TCP, lb.Policies{}, lb.Policies{Hold: 1e9}, all, "userspace, policy: auto: the cheapest that has hold (--default-policy hold=VALUE)"},
		{lb.TCP, lb.Policies{Scheduler: "lc", MaxConnections: 5}, lb.Policies{}, all,
			"userspace, policy: auto: the cheapest that has max-connections (annotation sluice.io/max-connections)"},
		{lb.UDP, lb.Policies{Scheduler: "lc", MaxConnections: 5}, lb.Policies{}, all, "queue, policy: auto: the cheapest that has sch"},
		{lb.TCP, lb.Policies{RetryRefused: lb.On}, lb.Policies{}, all, "userspace, policy: auto: the cheapest that has retry-ref"},
		{lb.TCP, lb.Policies{Hold: -1}, lb.Policies{Hold: 1e9}, all, "nftables, cost: auto: it has"},
		{lb.TCP, lb.Policies{Scheduler: "lc", IdleTimeout: 1e9}, lb.Policies{}, all,
			"userspace, policy: auto: the cheapest that has idle-timeout (annotation sluice.io/idle-timeout)"},
		{lb.UDP, lb.Policies{Scheduler: "lc", IdleTimeout: 1e9}, lb.Policies{}, all, "queue, policy: auto: the cheapest that has sch"},
		{lb.TCP, lb.Policies{ProxyProtocol: "v2"}, lb.Policies{}, all,
			"userspace, policy: auto: the cheapest that has proxy-protocol (annotation sluice.io/proxy-protocol)"},
		{lb.TCP, lb.Policies{}, lb.Policies{}, old, "iptables, host: auto: data path nftables is not available: no nf_tables"},
		{lb.TCP, lb.Policies{Scheduler: "lc"}, lb.Policies{}, old, "userspace, host: auto: data path queue is not available: no"},
		{lb.TCP, lb.Policies{OutlierEjection: lb.On}, lb.Policies{}, all, "queue, policy: auto: the cheapest that has outlier-ej"},
	} {
		s := service(c.of, "s", 1, 1)
		c.requests.DataPath = "auto"
		s.Policies = &c.requests
		got := choose(s, IPVS, &c.can, &c.given)
		if text := got.Path.String() + ", " + got.Reason.String() + ": " + got.Why; !strings.HasPrefix(text, c.want) ||
			got.Fallback != "" {
			t.Errorf("%+v, given %+v: %s (%s), want %s", c.requests, c.given, text, got.Fallback, c.want)
		}
	}
}

// TestSteady: a Service gets at once to where it has all that it requests, from there to a cheaper path only when that
// would have done for the whole window, and never moves more than twice down in a window.
func TestSteady(t *testing.T) {
	r := seeded(t)
	const window = 30 * time.Second
	now := int64(1)
	w := &settling{window, func() int64 { return now }}
	env := new(environment)
	was, since := Choice{}, now // since when a cheaper one would do
	downs, waits := 0, 0
	s := asker(t, r)
	for range 20_000 {
		now += int64(r.IntN(int(window / 4)))
		if r.IntN(8) == 0 {
			s = asker(t, r)
		}
		if r.IntN(16) == 0 {
			env.can[0] = host(r)
		}
		would := env.choose(s)
		c := w.steady(s, was, would, env)
		its, asked := env.available(s), asking(s, &env.given)
		switch {
		case c.Path == would.Path:
			if down := slices.Index(costs, c.Path) < slices.Index(costs, was.Path); down && was.auto && was.Reason != ByHost {
				if early := time.Duration(now-since) < window; !early {
					downs++
				} else if its[was.Path] == nil && lacks(asked, was.Path) <= lacks(asked, c.Path) && c.auto {
					t.Fatalf("from %s to %s, which would have done for %v only", was.Path, c.Path, time.Duration(now-since))
				}
			}
			since = now
		case c.Path != was.Path || c.Reason != BySettling:
			t.Fatalf("from %+v, where it would be %+v: %+v", was, would, c)
		default:
			waits++
			if was.until == 0 {
				since = now
			}
			if its[c.Path] != nil || lacks(asked, c.Path) > lacks(asked, would.Path) || time.Duration(now-since) >= window {
				t.Fatalf("it is kept on %s, lacks more than on %s or has been kept for %v", c.Path, would.Path,
					time.Duration(now-since))
			}
		}
		was = c
	}
	if downs < 100 || waits < 100 {
		t.Errorf("%d moves to cheaper paths, %d times it waited: want more", downs, waits)
	}
}
