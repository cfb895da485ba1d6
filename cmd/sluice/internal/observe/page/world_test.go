package page

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/history"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/status"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/conditions"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/flows/report"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// hostile is a name that no API server would accept.
var hostile = "x\"><script>alert(1)</script>\x1b[31m\n\u202e'&--" + strings.Repeat("long", 60)

// wrong is what is wrong in the world.
func wrong() []conditions.Condition {
	return []conditions.Condition{{Reason: conditions.ManifestRejected, Text: "/etc/sluice/a.yaml:6: not valid YAML"},
		{Reason: conditions.EndpointsUnmatched, Namespace: "shop", Service: "checkout", Text: "port htpp is none"}}
}

// world is a Balancer with what there may be of a node, and the server that shows it.
type world struct {
	*api.Sources
	url string
}

func tcpService(namespace, name string, at byte, endpoints int) *lb.Service {
	s := &lb.Service{ID: lb.ID{Namespace: namespace, Name: name, Protocol: lb.TCP},
		Addresses: []lb.Address{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, at}), 80)}}}
	for e := range endpoints {
		s.Backends = append(s.Backends, lb.Backend{Ready: true, Serving: true, Local: e == 0,
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, at, byte(e + 1)}), 8080)})
	}
	return s
}

// services returns those that tests ask for, and so many others.
func services(others int) []*lb.Service {
	web := tcpService("default", "web", 10, 3)
	web.Addresses = append(web.Addresses, lb.Address{Kind: lb.NodePort,
		Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), 30080)}, lb.Address{Kind: lb.LoadBalancerIP,
		Addr:    netip.MustParseAddrPort("198.51.100.80:80"),
		Sources: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}})
	web.Backends[1].Weight = 3
	web.Policies = &lb.Policies{Scheduler: "lc", ConnectAttempts: 3}
	rolling := tcpService("shop", "cart", 11, 4)
	rolling.Backends[3] = lb.Backend{Addr: rolling.Backends[3].Addr, Serving: true, Terminating: true}
	dns := tcpService("kube-system", "kube-dns", 12, 2)
	dns.ID.Port, dns.ID.Protocol = "dns", lb.UDP
	dnsTCP := tcpService("kube-system", "kube-dns", 12, 2)
	dnsTCP.ID.Port = "dns-tcp"
	all := []*lb.Service{web, rolling, dns, dnsTCP, tcpService("shop", "checkout", 13, 0),
		tcpService("shop", "payments", 14, 3), tcpService(hostile, hostile, 15, 1)}
	for i := range others {
		s := tcpService(fmt.Sprintf("team-%02d", i%40), fmt.Sprintf("service-%05d", i), 0, 3)
		s.Addresses[0].Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 100, byte(i >> 8), byte(i)}), 80)
		for e := range s.Backends {
			s.Backends[e].Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(128 + e), byte(i >> 8),
				byte(i)}), 8080)
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *lb.Service) int { return a.ID.Compare(b.ID) })
	return all
}

// newWorld makes a world in which, over 15 minutes that have passed, clients came, and a process took over.
func newWorld(t testing.TB, others int) *world {
	t.Helper()
	table, err := lb.NewTable(services(others), lb.Node{})
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer.Balancer{Outlier: lb.DefaultOutlier}
	b.Update(table)
	j := journal.New(zap.NewNop())
	t.Cleanup(j.Close)
	j.Remember(journal.Entry{Reason: "Serving", Note: "version v1.4.0"})
	j.Remember(journal.Entry{Reason: "TookOver"})
	j.Remember(journal.Entry{Reason: journal.EndpointsChanged, Namespace: "shop", Service: "cart",
		Note: "ready 3, was 4"})
	j.Remember(journal.Entry{Warning: true, Reason: journal.NoEndpoints, Namespace: "shop", Service: "checkout",
		Note: "none is ready"})
	j.Remember(journal.Entry{Reason: journal.ServiceAdded, Namespace: hostile, Service: hostile, Note: hostile})
	now := time.Now()
	recorder := history.New(b, func() uint64 { return 7 }, nil)
	w := &world{Sources: &api.Sources{Wrong: wrong, LB: b, Now: eventloop.Now, Mode: agent.Userspace, Journal: j, History: recorder,
		Choice: func(id lb.ID) (agent.Choice, bool) {
			c := agent.Choice{Path: agent.Userspace, Why: "--proxy-mode userspace"}
			if id.Name == "payments" {
				c.Fallback = "nf_tables is missing"
			}
			return c, true
		}}}
	w.Status = func() api.Status {
		handed, last := now.Add(-6*time.Minute), now.Add(-150*time.Second)
		return api.Status{Version: "v1.4.0", Node: "node-1", PID: 4711, Started: handed,
			Serving:   now.Add(-50 * time.Hour),
			HandOvers: api.HandOvers{Count: 2, Last: &handed, From: 4242}, Mode: "userspace", Loops: 2,
			PacketFilter: &api.Chosen{Name: "nftables"}, Source: api.Source{APIServer: "https://10.0.0.1:6443",
				Contact: &last}, Sync: api.Sync{Healthy: true, Applied: 1234, Last: &last},
			Services: api.ServiceCounts{Ports: table.Len(), Addresses: table.Len() + 2, Endpoints: 3 * table.Len()},
			Open:     api.Open{TCP: 5123, UDP: 64}, Counted: api.Counted{Active: 5187},
			Descriptors: api.Descriptors{Used: 10374, Limit: 1048576}}
	}
	w.Servers, w.Loops = []api.Server{opened{}}, 1
	w.Kernel = func() report.Counts {
		of := lb.ID{Namespace: "kube-system", Name: "kube-dns", Port: "dns", Protocol: lb.UDP}
		at := netip.MustParseAddrPort("10.244.12.1:8080")
		return report.Counts{of: {Count: report.Count{Open: 7777},
			Endpoints: map[netip.AddrPort]report.Count{at: {Open: 5555}}}}
	}
	w.live(t, now)
	pages, err := Handler(w.Sources)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", pages)
	mux.Handle("/v1/", w.Handler())
	guard := &status.Inside{Inner: mux}
	s := httptest.NewServer(status.Info{Metrics: http.NotFoundHandler(), Inside: guard}.Handler())
	t.Cleanup(s.Close)
	w.url = s.URL
	return w
}

// opened are connections that are open: 60 of default/web, and one of kube-system/kube-dns, which the kernel forwards.
type opened struct{}

// Look passes them on.
func (opened) Look(_, from int, q *look.Query, visit func(look.Info) (more bool)) (next int, err error) {
	for at := from; at < 61; at++ {
		i := look.Info{Protocol: lb.TCP, Client: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(at)}), 4000),
			Asked: netip.MustParseAddrPort("10.96.0.10:80"), Service: lb.ID{Namespace: "default", Name: "web"},
			Backend: netip.MustParseAddrPort("10.244.10.1:8080"), State: look.Established, Age: 90 * time.Minute,
			Idle: 3 * time.Second, Known: true, In: 1500, Out: 2_500_000}
		if at == 60 {
			i.Service, i.Kernel, i.Age = lb.ID{Namespace: "kube-system", Name: "kube-dns"}, &look.Kernel{Path: "nftables"}, -1
		}
		if q.Has(&i) && !visit(i) {
			return at + 1, nil
		}
	}
	return look.End, nil
}

// live has clients come in steps of 5 s until 10 s ago, and some since then, so that rates are above 0 however late
// they are asked for.
func (w *world) live(t testing.TB, now time.Time) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	var open []balancer.Choice
	clients := func(at string, n, bytes, fail int) {
		for i := range n {
			c, err := w.LB.Pick(balancer.Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: netip.MustParseAddrPort(at)},
				Client: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), Now: w.Now()})
			if err != nil {
				continue
			}
			m := balancer.Meter{}
			m.Add(c, bytes/8, bytes)
			m.Flush(c)
			if i < fail {
				c.Done(errors.New("reset"))
			} else {
				open = append(open, c)
			}
		}
	}
	for step := range history.Size + 2 {
		at := now.Add(time.Duration(step-history.Size-2) * history.Every)
		swing := step % 60
		clients("10.96.0.10:80", 20+min(swing, 60-swing)+r.IntN(6), 40_000, 0)
		clients("10.96.0.11:80", 5+r.IntN(4), 9_000, 0)
		clients("10.96.0.12:53", 3, 300, 0)
		if step > 150 {
			clients("10.96.0.14:80", 6, 1000, 1)
		}
		if step > 170 {
			clients("10.96.0.13:80", 2, 0, 0)
		}
		for len(open) > 300 {
			open[0].Done(nil)
			open = open[1:]
		}
		if step == history.Size-72 {
			w.History.TookOver()
		}
		if step <= history.Size {
			w.History.Sample(at)
		}
	}
}
