package metrics

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/client-go/rest"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/checks"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/handover"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kubeapi"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/manifest"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/flows/report"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/nftables"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
	"github.com/sluice-lb/sluice/redirect"
	"github.com/sluice-lb/sluice/sctp"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

var check = testbed.Check

// unserved are numbers of Stats for which there is no metric, since nothing that is shipped would use it. The API, the
// log or tests read them.
var unserved = strings.Fields(`Accepted Dials Held Queued DrainReset IdleTimedOut DurationExceeded HalfCloseTimedOut
	ClientResets BackendResets Spread Transparent Resumed Evicted Refused NotAnswered Resent SendErrors
	MessagesIn MessagesOut TooLong Frontends Applied Failures`)

// number visits every number in a Stats and in what it embeds, and gives each another value, beginning with next.
func number(stats reflect.Value, next *int64, visit func(name string, value int64)) {
	for i := range stats.NumField() {
		f, name := stats.Field(i), stats.Type().Field(i).Name
		*next++
		switch f.Kind() {
		case reflect.Struct:
			if stats.Type().Field(i).Anonymous {
				number(f, next, visit)
			}
			continue
		case reflect.Int, reflect.Int64:
			if _, ok := f.Interface().(time.Duration); ok {
				continue // a setting
			}
			f.SetInt(*next)
		case reflect.Uint64:
			f.SetUint(uint64(*next))
		default:
			continue
		}
		visit(name, *next)
	}
}

// whole returns metrics in which every series has a value, and what the numbers of the
// rooms look like on the page.
func whole(t *testing.T) (m *Metrics, want map[string]string) {
	var ts tcp.Stats
	var us udp.Stats
	var ss sctp.Stats
	var as agent.Status
	want = map[string]string{}
	for base, stats := range map[int64]any{1000: &ts, 2000: &us, 3000: &as, 8000: &ss} {
		next := base
		number(reflect.ValueOf(stats).Elem(), &next, func(name string, value int64) {
			if !slices.Contains(unserved, name) {
				want[fmt.Sprintf("%T.%s", stats, name)] = fmt.Sprintf(" %d\n", value)
			}
		})
	}
	us.Evicted = us.EvictedService + us.EvictedClient + 2999
	want["evicted by the limit"] = " 2999\n"
	as.NoLocal = [2]agent.NoLocal{{Internal: 5001, External: 5002}, {Internal: 5003, External: 5004}}
	as.LastApplied, as.LastQueued = time.Unix(1700000000, 0), time.Unix(1700000001, 0)
	problem := &manifest.Error{File: "web.yaml", Line: 7, Kind: manifest.Invalid, Reason: "no such field"}
	budget := &eventloop.Budget{Limit: 4001}
	budget.Take(4000)
	budget.Take(2)
	steered := redirect.Stats{Writes: 1, Failures: 6001, Rules: map[string]int{"nat": 6003}}
	forwarding := nftables.Stats{Failures: 6102}
	m = New(Sources{
		Build:     Build{Version: "v1", Commit: "abc"},
		Detail:    Detail{Services: 10, Endpoints: 10, All: true},
		APIServer: func() Contact { return Contact{Last: time.Unix(1700000003, 0), Lost: true} },
		Conntrack: func() (entries, limit int, err error) { return 7013, 7014, nil },
		TCP:       func() tcp.Stats { return ts }, UDP: func() udp.Stats { return us },
		SCTP:         func() sctp.Stats { return ss },
		PacketFilter: "nftables", PacketFilterForced: true,
		SCTPEngine: func() (sctp.Engine, string) { return sctp.Packet, "asked for" }, Agent: func() agent.Status { return as },
		Manifests:   func() manifest.Result { return manifest.Result{Files: 5000, Problems: []*manifest.Error{problem}} },
		Descriptors: budget,
		RefusedHTTP: func() uint64 { return 7 },
		AccessLog:   func() (uint64, uint64) { return 5, 6 },
		LogDropped:  func() uint64 { return 7014 },
		LostEvents:  func() uint64 { return 9018 },
		Families: []Family{
			{Name: "IPv4", Stats: func() redirect.Stats { return steered }, Stale: func() uint64 { return 6002 },
				Engine: func() (nftables.Stats, bool) { return forwarding, true }},
			{Name: "IPv6", Stats: func() redirect.Stats { return steered }, Stale: func() uint64 { return 0 }},
		},
		Services: func() []balancer.Stats {
			return []balancer.Stats{{ID: lb.ID{Namespace: "default", Name: "web", Port: "http", Protocol: lb.TCP},
				Counts: balancer.Counts{Picks: 7001},
				Backends: []balancer.BackendStats{{Addr: netip.MustParseAddrPort("192.0.2.9:80"),
					Counts: balancer.Counts{Failures: 7015},
					Health: balancer.BackendHealth{Ejected: true}}}}}
		},
		Kernel: func() report.Counts {
			return report.Counts{{Namespace: "default", Name: "web", Port: "http", Protocol: lb.TCP}: {
				Count: report.Count{Open: 7018, Counted: true, Total: 7019, In: flows.Count{Bytes: 7020},
					Out: flows.Count{Bytes: 7021}}}}
		},
		Times: func(visit func(lb.ID, *balancer.Times)) {
			var of balancer.Times
			of[balancer.ConnectTime].Buckets[30], of[balancer.ConnectTime].Sum = 7016, 7017e9
			visit(lb.ID{Namespace: "default", Name: "web", Port: "http", Protocol: lb.TCP}, &of)
			visit(lb.ID{Namespace: "default", Name: "web", Port: "http", Protocol: lb.TCP, IPv6: true}, &of)
			visit(lb.ID{}, &of)
		},
		Queue: func() Queue {
			return Queue{Answering: true, Chosen: 9001, None: 9002, Unknown: 9003, Strays: 9017, Missed: 9013,
				Uncounted: Lacks{9006, 9015, 9016}}
		},
		Outliers: func() balancer.OutlierStats {
			return balancer.OutlierStats{Active: 7004, Enforced: 7005, Overflow: 7006, Spared: 7007}
		},
		Conditions: func() map[string]int { return map[string]int{"AnnotationIgnored": 7012} },
		Checks: func() checks.Stats {
			return checks.Stats{Passed: 7008, Failed: 7009, Postponed: 7010,
				Failing: 7011}
		},
		Events: func() (reported, dropped uint64) { return 7002, 7003 },
	})
	handOvers := handover.NewMetrics()
	handOvers.Took()
	handOvers.Failed()
	m.Register(handOvers)
	m.ObserveAttempt(agent.Attempt{Took: time.Second, Err: errors.New("counted all the same")})
	m.ObserveAttempt(agent.Attempt{Took: time.Second, Changes: agent.Changes{Triggers: []agent.Trigger{
		{At: time.Now()}, {IPv6: true, At: time.Now()}, {IPv6: true, At: time.Now().Add(-time.Hour)},
	}}})
	m.ObserveStale(true, time.Second)
	m.ObserveProbe("/healthz", 503)
	m.ObserveProbe("/livez", 200)

	// A real request to nobody, and one that is answered.
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	kube, err := kubeapi.Events(&rest.Config{Host: server.URL, QPS: -1})
	check(t, err)
	if err := kube.Get().AbsPath("/version").Do(t.Context()).Error(); err == nil {
		t.Error("there is an API server")
	}
	waited.Observe(t.Context(), "GET", url.URL{Host: "192.0.2.1"}, time.Second)
	retries.IncrementRetry(t.Context(), "429", "GET", "192.0.2.1")
	return m, want
}

// TestEveryNumberIsServed: no counter of the rooms is forgotten here, none is taken
// for another, and Prometheus's own rules of naming hold.
func TestEveryNumberIsServed(t *testing.T) {
	m, want := whole(t)
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	page := w.Body.String()
	for _, line := range []string{
		`sluice_manifest_problems{file="web.yaml",reason="invalid"} 1`,
		`sluice_setting_info{reason="detected",setting="sctp_engine",value="packet"} 1`,
		`sluice_setting_info{reason="requested",setting="packet_filter",value="nftables"} 1`,
		"sluice_file_descriptors_used 4000", "sluice_file_descriptors_limit 4001", "sluice_file_descriptors_exhausted_total 1",
		`sluice_build_info{goversion="` + runtime.Version() + `",revision="abc",version="v1"} 1`,
		"sluice_apiserver_readable 0", "sluice_apiserver_last_contact_timestamp_seconds 1.700000003e+09",
		"sluice_conntrack_entries 7013", "sluice_conntrack_entries_limit 7014",
		`sluice_endpoint_failures_total{endpoint="192.0.2.9:80",protocol="TCP",service_name="web",service_namespace="default",service_port="http"} 7015`,
		`sluice_endpoint_ejected{endpoint="192.0.2.9:80",protocol="TCP",service_name="web",service_namespace="default",service_port="http"} 1`,
		`sluice_handover_failures_total 1`, `sluice_handover_last_timestamp_seconds{result="succeeded"}`,
		`sluice_handover_last_timestamp_seconds{result="failed"}`, "process_open_fds", "go_goroutines",
		`kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"} 2`,
		`kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1`,
		`kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv6"} 1`,
		`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv6"} 1`,
		`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv6",le="300"} 1`,
		`kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv6",le="16.384"} 2`,
		`kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family="IPv6"} 1`,
		`kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 6002`,
		`kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family="IPv4"} 6001`,
		`kubeproxy_sync_proxy_rules_iptables_total{ip_family="IPv4",table="nat"} 6003`,
		`kubeproxy_sync_proxy_rules_iptables_last{ip_family="IPv4",table="nat"} 0`,
		`kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 6102`,
		`kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="external"} 5002`,
		`kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv6",traffic_policy="internal"} 5003`,
		`kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv6"} 1.7e+09`,
		`kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 1.700000001e+09`,
		`kubeproxy_proxy_healthz_total{code="503"} 1`, `kubeproxy_proxy_healthz_total{code="200"} 0`, `kubeproxy_proxy_livez_total{code="200"} 1`,
		`sluice_endpoints_excluded{reason="ejected"} 7004`, `sluice_endpoints_excluded{reason="failing_probe"} 7011`,
		`sluice_ejections_total{result="enforced"} 7005`, `sluice_ejections_total{result="overflow"} 7006`,
		`sluice_ejections_total{result="spared"} 7007`, `sluice_deferred_total{work="probe"} 7010`,
		`sluice_dropped_records_total{kind="log"} 7014`, `sluice_dropped_records_total{kind="access_log"} 6`,
		`sluice_dropped_records_total{kind="event"} 7003`, `sluice_dropped_records_total{kind="conntrack_event"} 9018`,
		`sluice_queue_flows_total{result="queue_full"} 9013`, `sluice_queue_uncounted_flows_total{share="client"} 9015`,
		`rest_client_requests_total{code="404",host="127.0.0.1:`,
	} {
		want[line] = line
	}
	for name, text := range want {
		if !strings.Contains(page, text) {
			t.Errorf("%s is served nowhere", name)
		}
	}
	if problems, err := testutil.GatherAndLint(m.registry); err != nil {
		t.Error(err)
	} else {
		for _, p := range problems {
			// kube-proxy's gauges of these names would be called otherwise today.
			if p.Text != `non-counter metrics should not have "_total" suffix` || !strings.HasPrefix(p.Metric, "kubeproxy_sync_proxy_rules_") {
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
		}
	}
}

// TestFamilyWithoutRules: it has the series of changes, and none of rules.
func TestFamilyWithoutRules(t *testing.T) {
	r := prometheus.NewRegistry()
	k := newKubeProxy(r, func() agent.Status { return agent.Status{} }, []Family{{Name: "IPv4"}})
	m := &Metrics{registry: r, kubeProxy: k}
	m.ObserveAttempt(agent.Attempt{Took: time.Second})
	got, err := m.registry.Gather()
	check(t, err)
	var names []string
	for _, f := range got {
		if name, ours := strings.CutPrefix(f.GetName(), "kubeproxy_sync_"); ours {
			names = append(names, name)
		}
		if f.GetName() == "kubeproxy_sync_proxy_rules_duration_seconds" && f.GetMetric()[0].GetHistogram().GetSampleCount() != 1 {
			t.Errorf("counted: %v, want 1", f)
		}
	}
	want := []string{"proxy_rules_duration_seconds", "proxy_rules_last_queued_timestamp_seconds",
		"proxy_rules_last_timestamp_seconds", "proxy_rules_no_local_endpoints_total"}
	if !slices.Equal(names, want) {
		t.Errorf("series of changes are %v, want %v", names, want)
	}
}

// TestDescribe: documents describe all metrics that are served.
func TestDescribe(t *testing.T) {
	m, _ := whole(t)
	m.families[1].NFTables = true // one of each packet filter
	families, err := m.registry.Gather()
	check(t, err)
	var served, described []string
	for _, f := range families {
		if !slices.ContainsFunc([]string{"go_", "process_", "promhttp_"}, func(prefix string) bool {
			return strings.HasPrefix(f.GetName(), prefix)
		}) {
			served = append(served, f.GetName())
		}
	}
	handOvers := handover.NewMetrics()
	handOvers.Took()
	all, err := Describe(handOvers)
	check(t, err)
	for _, d := range all {
		described = append(described, d.Name)
		if !slices.Contains([]string{"alpha", "beta", "stable"}, d.Stability) {
			t.Errorf("%s is %s", d.Name, d.Stability)
		}
	}
	if diff := cmp.Diff(served, described); diff != "" {
		t.Errorf("(-served +described)\n%s", diff)
	}
}

// TestManyServices: no more label values than allowed; nothing is lost, and no counter
// goes down, when Services come and go.
func TestManyServices(t *testing.T) {
	port := func(name string, picks uint64) balancer.Stats {
		return balancer.Stats{ID: lb.ID{Namespace: "default", Name: name, Protocol: lb.UDP}, Counts: balancer.Counts{Picks: picks}, InFlight: 1,
			Backends: []balancer.BackendStats{{Live: true, Eligible: true}, {Live: true}, {}}}
	}
	both := port("a", 1)
	both.ID.IPv6 = true
	var now []balancer.Stats
	s := newServices(func() []balancer.Stats { return now }, noKernel, Detail{Services: 2})
	for i, step := range []struct {
		now  []balancer.Stats
		want string // picks by Service
	}{
		{[]balancer.Stats{port("a", 1), both, port("b", 1)}, "a=2 b=1"},
		{[]balancer.Stats{port("a", 1), both, port("aa", 5), port("b", 1), port("c", 5)}, "__other__=10 a=2 b=1"},
		{[]balancer.Stats{port("a", 1), port("aa", 7), port("b", 1), port("c", 5)}, "__other__=12 a=1 b=1"},
		{[]balancer.Stats{port("a", 1), port("aa", 7), port("b", 1)}, "__other__=12 a=1 b=1"},
		{[]balancer.Stats{port("aa", 8), port("b", 1), port("c", 1)}, "__other__=13 aa=8 b=1"},
		{[]balancer.Stats{port("aa", 8), port("b", 2), port("c", 1)}, "__other__=13 aa=8 b=2"},
		{[]balancer.Stats{port("b", 2)}, "__other__=13 b=2"},
	} {
		now = step.now
		r := prometheus.NewPedanticRegistry()
		r.MustRegister(prometheus.CollectorFunc(s.collect))
		families, err := r.Gather()
		check(t, err)
		var got []string
		for _, f := range families {
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if f.GetName() == "sluice_service_picks_total" && l.GetName() == "service_name" {
						got = append(got, fmt.Sprintf("%s=%v", l.GetValue(), m.GetCounter().GetValue()))
					}
				}
			}
		}
		if text := strings.Join(got, " "); text != step.want {
			t.Errorf("scrape %d: %s, want %s", i, text, step.want)
		}
	}
	if n := numbersOf(&now[0]); n[counters] != 1 || n[states] != 2 || n[states+1] != 1 || n[states+2] != 0 {
		t.Errorf("numbers = %v", n)
	}
}

// scraped returns the values of a scrape, by series without the labels that port and address have; and their number.
func scraped(t *testing.T, s *services) (values map[string]float64, all int) {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(prometheus.CollectorFunc(s.collect))
	families, err := r.Gather()
	check(t, err)
	values = map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			all++
			name := strings.TrimPrefix(f.GetName(), "sluice_")
			for _, l := range m.GetLabel() {
				if slices.Contains([]string{"service_name", "reason", "direction", "state", "endpoint"}, l.GetName()) {
					name += " " + l.GetValue()
				}
			}
			values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return values, all
}

// TestBasicFamilies: what a Service has not counted yet has no series, one that is there stays, and all are there from
// the start if they are requested.
func TestBasicFamilies(t *testing.T) {
	const service = 8 // series from the start
	var now []balancer.Stats
	for i := range 1000 {
		now = append(now, balancer.Stats{ID: lb.ID{Namespace: "default", Name: fmt.Sprint("s", i)}})
	}
	s := newServices(func() []balancer.Stats { return now }, noKernel, Detail{Services: 999})
	values, all := scraped(t, s)
	if want := 1000 * service; all != want { // the last one is the sum
		t.Errorf("1,000 Services have %d series, want %d", all, want)
	}
	for _, name := range []string{"service_picks_total s0", "service_failures_total s0", "service_bytes_total in s0",
		"service_bytes_total out s0", "service_active s0", "service_held s0", "service_endpoints s0 live",
		"service_endpoints s0 eligible", "service_picks_total __other__"} {
		if value, ok := values[name]; !ok || value != 0 {
			t.Errorf("%s = %v, %v", name, value, ok)
		}
	}
	limited, queued := "service_rejected_total limited s0", "service_queued s0"
	now[0].Limited, now[0].Queued, now[999].Limited = 3, 2, 4
	if values, more := scraped(t, s); more != all+3 || values[limited] != 3 || values[queued] != 2 ||
		values["service_rejected_total limited __other__"] != 4 {
		t.Errorf("%d series more, want 3; %v, %v", more-all, values[limited], values[queued])
	}
	now[0].Queued = 0
	if values, more := scraped(t, s); more != all+3 || values[limited] != 3 || values[queued] != 0 {
		t.Errorf("%d series more, want 3: they stay", more-all)
	}
	gone := now[0]
	now = now[1:]
	scraped(t, s)
	gone.Limited = 0
	now[998] = gone
	if values, _ := scraped(t, s); len(values) == 0 || values["service_rejected_total limited __other__"] != 4 {
		t.Errorf("the sum has %v", values["service_rejected_total limited __other__"])
	} else if _, ok := values[limited]; ok {
		t.Errorf("%s is there for a Service that is new", limited)
	}
	s = newServices(func() []balancer.Stats { return now[:2] }, noKernel, Detail{Services: 1000, All: true})
	if _, all := scraped(t, s); all != 2*(len(serviceSeries)-4) { // but the kernel's
		t.Errorf("%d series, want all", all)
	}
	s = newServices(func() []balancer.Stats { return now[:2] }, noKernel, Detail{})
	if _, all := scraped(t, s); all != service {
		t.Errorf("%d series, want those of the sum", all)
	}
}

func noKernel() report.Counts { return nil }

// TestKernelSeries: a Service has series of what the kernel counts while it counts it, whole or what is open only; they
// go on where they were, and so does the sum of those without.
func TestKernelSeries(t *testing.T) {
	id := func(name string, ipv6 bool) lb.ID {
		return lb.ID{Namespace: "default", Name: name, Protocol: lb.TCP, IPv6: ipv6}
	}
	var now []balancer.Stats
	for _, of := range []lb.ID{id("a", false), id("a", true), id("b", false), id("c", false), id("d", false)} {
		now = append(now, balancer.Stats{ID: of})
	}
	count := func(open, total, bytes uint64) *report.Counted {
		return &report.Counted{Count: report.Count{Open: open, Counted: total > 0, Total: total,
			In: flows.Count{Bytes: bytes}, Out: flows.Count{Bytes: 2 * bytes}}}
	}
	var kernel report.Counts
	s := newServices(func() []balancer.Stats { return now }, func() report.Counts { return kernel }, Detail{Services: 2})
	for i, step := range []struct {
		kernel report.Counts
		want   string // open, connections and bytes
	}{
		{nil, "a: b: other:"},
		{report.Counts{id("a", false): count(1, 2, 10), id("a", true): count(2, 3, 100), id("b", false): count(4, 0, 0),
			id("c", false): count(1, 5, 50), id("d", false): count(1, 1, 1), id("gone", false): count(9, 9, 9)},
			"a: 3 5 110 220 b: 4 other: 2 6 51 102"},
		{nil, "a: b: other: 0 6 51 102"},
		{report.Counts{id("a", false): count(0, 2, 10), id("a", true): count(0, 3, 100),
			id("c", false): count(0, 7, 70)}, "a: 0 5 110 220 b: other: 0 8 71 142"},
	} {
		kernel = step.kernel
		values, _ := scraped(t, s)
		var got []string
		for _, name := range []string{"a", "b", "__other__"} {
			got = append(got, strings.Trim(name, "_")+":")
			for _, series := range []string{"active %s", "connections_total %s", "bytes_total in %s", "bytes_total out %s"} {
				if n, ok := values["service_kernel_"+fmt.Sprintf(series, name)]; ok {
					got = append(got, fmt.Sprint(n))
				}
			}
		}
		if text := strings.Join(got, " "); text != step.want {
			t.Errorf("scrape %d: %s, want %s", i, text, step.want)
		}
	}
}

// TestEndpointSeries: no more endpoints have series than may, those that have keep them, and one that leaves makes
// room.
func TestEndpointSeries(t *testing.T) {
	at := func(last byte, picks uint64, ejected bool) balancer.BackendStats {
		return balancer.BackendStats{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, last}), 80),
			Counts: balancer.Counts{Picks: picks, Failures: 1}, Health: balancer.BackendHealth{Ejected: ejected}}
	}
	now := []balancer.Stats{{ID: lb.ID{Namespace: "default", Name: "web"}, Backends: []balancer.BackendStats{at(1, 10, false),
		at(2, 20, true)}}}
	s := newServices(func() []balancer.Stats { return now }, noKernel, Detail{Endpoints: 2})
	values, _ := scraped(t, s)
	for name, want := range map[string]float64{"picks_total 10.0.0.1:80": 10, "failures_total 10.0.0.1:80": 1,
		"ejected 10.0.0.1:80": 0, "picks_total 10.0.0.2:80": 20, "ejected 10.0.0.2:80": 1} {
		if got, ok := values["endpoint_"+name+" web"]; !ok || got != want {
			t.Errorf("%s = %v, %v; want %v", name, got, ok, want)
		}
	}
	picks := func(last byte) bool {
		_, ok := values[fmt.Sprintf("endpoint_picks_total 10.0.0.%d:80 web", last)]
		return ok
	}
	now[0].Backends = []balancer.BackendStats{at(3, 0, false), at(1, 10, false), at(2, 20, false)}
	if values, _ = scraped(t, s); picks(3) || !picks(1) || !picks(2) {
		t.Errorf("with a third endpoint: %v", values)
	}
	now[0].Backends = now[0].Backends[:2]
	if values, _ = scraped(t, s); !picks(3) || !picks(1) || picks(2) {
		t.Errorf("after one has left: %v", values)
	}
	s.detail.Endpoints = 0
	if values, _ = scraped(t, s); picks(1) {
		t.Errorf("endpoints have series though none may: %v", values)
	}
}

// TestNFTablesFamily: what nftables steers or forwards has the series of kube-proxy's mode of that name.
func TestNFTablesFamily(t *testing.T) {
	r := prometheus.NewRegistry()
	newKubeProxy(r, func() agent.Status { return agent.Status{} }, []Family{{Name: "IPv4", NFTables: true,
		Stale:  func() uint64 { return 0 },
		Engine: func() (nftables.Stats, bool) { return nftables.Stats{Failures: 2}, true },
		Stats:  func() redirect.Stats { return redirect.Stats{Failures: 7, Rules: map[string]int{"sluice-steering": 8}} }}})
	const name, want = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total", `{ip_family="IPv4"} 9`
	problem := testutil.GatherAndCompare(r, strings.NewReader(""), name)
	if !strings.Contains(fmt.Sprint(problem), want) {
		t.Errorf("%s: %v, want %v", name, problem, want)
	}
}
