package policies

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// samples has a value of each policy that requests something, and one that is none.
var samples = map[string][2]string{
	"data-path":        {"iptables", "ebpf"},
	"scheduler":        {"mh,mh-port", "nosuch"},
	"slow-start":       {"30s", "2h"},
	"outlier-ejection": {"true", "yes"},
	"readiness-probe":  {"tcpSocket: {}", " "},
	"udp-responses":    {"1", "-1"},
	"hold":             {"30s", "2h"},
	"hold-connections": {"200", "0"},
	"transparent":      {"true", "yes"},
	"proxy-protocol":   {"v2", "2"},
	"access-log":       {"errors", "on"},

	"max-endpoint-connections":   {"20", "-1"},
	"max-pending-connections":    {"100", "many"},
	"queue-timeout":              {"5s", "0"},
	"retry-refused":              {"true", "maybe"},
	"max-connections":            {"1000", "1.5"},
	"max-client-connections":     {"10", "2147483648"},
	"max-client-connection-rate": {"100", "1000001"},

	"on-endpoint-removed":     {"reset-after:5s", "reset-after:-5s"},
	"connect-timeout":         {"1s", "0"},
	"connect-attempts":        {"8", "9"},
	"idle-timeout":            {"1h0m0s", "1ms"},
	"udp-idle-timeout":        {"5s", "0"},
	"max-connection-duration": {"1h0m0s/10%", "1h/101%"},
	"half-close-timeout":      {"30s", "-1s"},
	"tcp-keepalive":           {"1m0s/10s/5", "1m/10s/0"},
	"tcp-user-timeout":        {"30s", "1ms"},
}

// TestTable: each policy has a word of its own, is read and written alike, refuses what is none and says what to give,
// and is a field of lb.Policies that no other is.
func TestTable(t *testing.T) {
	fields := make(map[string]string)
	for _, p := range All() {
		sample, ok := samples[p.Word]
		if !ok || p.Means == "" || Find(p.Word) != p {
			t.Errorf("%s: no sample or meaning, or there are two: %+v", p.Word, p)
			continue
		}
		var of lb.Policies
		if err := p.Set(&of, sample[1]); err == nil || of != (lb.Policies{}) {
			t.Errorf("%s: %q is %+v, %v", p.Word, sample[1], of, err)
		}
		if err := p.Set(&of, sample[0]); err != nil || p.Get(&of) != sample[0] {
			t.Errorf("%s: %q is read as %q, %v", p.Word, sample[0], p.Get(&of), err)
		}
		for i := range reflect.TypeOf(of).NumField() {
			if name := reflect.TypeOf(of).Field(i).Name; !reflect.ValueOf(of).Field(i).IsZero() {
				if other := fields[name]; other != "" {
					t.Errorf("%s and %s are both %s", p.Word, other, name)
				}
				fields[name] = p.Word
			}
		}
	}
	if n := reflect.TypeFor[lb.Policies]().NumField(); len(fields) != n {
		t.Errorf("of %d fields policies are %v", n, fields)
	}
}

// bad finds that a probe is none.
func bad(probe string) error {
	if strings.HasPrefix(probe, "exec") {
		return errors.New("no probe")
	}
	return nil
}

// TestRead: what is of no use is ignored, with what to do, and what else is requested holds.
func TestRead(t *testing.T) {
	for _, c := range []struct {
		annotations map[string]string
		want        lb.Policies
		ignored     string // a part of it
	}{
		{map[string]string{"slow-start": "5s", "kubernetes.io/x": "y"}, lb.Policies{SlowStart: 5e9}, ""},
		{map[string]string{"slow-start": "5s", "schedular": "lc"}, lb.Policies{SlowStart: 5e9},
			"did you mean sluice.io/scheduler?"},
		{map[string]string{"dataPath": "ipvs"}, lb.Policies{}, "did you mean sluice.io/data-path?"},
		{map[string]string{"data-path": "ip-tables"}, lb.Policies{}, "did you mean iptables?"},
		{map[string]string{"scheduler": "maglve"}, lb.Policies{}, "did you mean maglev?"},
		{map[string]string{"scheduler": "sed"}, lb.Policies{Scheduler: "sed"}, ""}, // of ipvs
		{map[string]string{"on-endpoint-removed": "rest"}, lb.Policies{}, "did you mean reset?"},
		{map[string]string{"on-endpoint-removed": "reset:5s"}, lb.Policies{}, "like reset-after:30s"},
		{map[string]string{"on-endpoint-removed": "keep"}, lb.Policies{OnEndpointRemoved: -1}, ""},
		{map[string]string{"on-endpoint-removed": "reset", "idle-timeout": "0"},
			lb.Policies{OnEndpointRemoved: 1, IdleTimeout: -1}, ""},
		{map[string]string{"max-connection-duration": "1h"},
			lb.Policies{MaxConnectionDuration: 3600e9, MaxConnectionJitter: -1}, ""},
		{map[string]string{"max-connection-duration": "1h/10"}, lb.Policies{}, "1h/10%"},
		{map[string]string{"max-connection-duration": "year/10%"}, lb.Policies{}, "1h/10%"},
		{map[string]string{"tcp-keepalive": "30s"}, lb.Policies{KeepaliveIdle: 30e9}, ""},
		{map[string]string{"tcp-keepalive": "30s / 5s"}, lb.Policies{KeepaliveIdle: 30e9, KeepaliveInterval: 5e9}, ""},
		{map[string]string{"tcp-keepalive": "30s//9"}, lb.Policies{}, "like 15s/15s/9"},
		{map[string]string{"tcp-keepalive": "30s/5s/9/1"}, lb.Policies{}, "like 15s/15s/9"},
		{map[string]string{"something-else": "1"}, lb.Policies{}, "see docs/reference/annotations.md"},
		{map[string]string{"weight": "1"}, lb.Policies{}, "for EndpointSlices"},
		{map[string]string{"slow-start": "90m"}, lb.Policies{}, `"90m": give a duration up to 1h, or 0 for none`},
		{map[string]string{"readiness-probe": "exec: {}"}, lb.Policies{}, "no probe"},
		{map[string]string{"readiness-probe": "tcpSocket: {}"}, lb.Policies{ReadinessProbe: "tcpSocket: {}"}, ""},
		{map[string]string{"scheduler": " "}, lb.Policies{}, "it is empty"},
		{map[string]string{"slow-start": strings.Repeat("é", 1000)}, lb.Policies{}, `é...": give`},
	} {
		annotations := make(map[string]string)
		for word, value := range c.annotations {
			if !strings.Contains(word, "/") {
				word = Prefix + word
			}
			annotations[word] = value
		}
		p, ignored := Read(annotations, bad)
		if p == nil {
			p = new(lb.Policies)
		}
		if *p != c.want {
			t.Errorf("%v: %+v, want %+v", c.annotations, *p, c.want)
		}
		text := ""
		for _, i := range ignored {
			text += i.Error()
		}
		if !strings.Contains(text, c.ignored) || (text == "") != (c.ignored == "") || len(text) > 400 {
			t.Errorf("%v: ignored %q, want %q", c.annotations, text, c.ignored)
		}
	}
}

// TestManyIgnored: a Service with very many annotations of no use is reported in few words, always in the same order.
func TestManyIgnored(t *testing.T) {
	annotations := make(map[string]string)
	for i := range 1000 {
		annotations[fmt.Sprintf("sluice.io/x%03d", i)] = ""
	}
	_, ignored := Read(annotations, bad)
	_, again := Read(maps.Clone(annotations), bad)
	if len(ignored) != 8 || !slices.Equal(ignored, again) || !strings.Contains(ignored[7].Reason, "and 992 more") {
		t.Errorf("%+v", ignored)
	}
}

// TestShortfalls: what a path does not have is known for every policy, and what requests nothing is no shortfall.
func TestShortfalls(t *testing.T) {
	for word, sample := range samples {
		p := Find(word)
		s := &lb.Service{Policies: new(lb.Policies)}
		testbed.Check(t, p.Set(s.Policies, sample[0]))
		for _, of := range []lb.Protocol{lb.UDP, lb.SCTP, lb.TCP} { // the last one that it is of use to
			if s.Protocol == 0 || p.Of == nil || slices.Contains(p.Of, of) {
				s.Protocol = of
			} else if got := Shortfalls(s, "nftables"); len(got) > 0 && got[0].Reason == "" {
				t.Errorf("%s of %s: %+v", word, of, got)
			}
		}
		if p.With != "" {
			if got := Shortfalls(s, "nftables"); got != nil {
				t.Errorf("%s without %s: %+v", word, p.With, got)
			}
			testbed.Check(t, Find(p.With).Set(s.Policies, samples[p.With][0]))
		}
		for _, path := range paths[:len(paths)-1] {
			got := Shortfalls(s, path)
			got = slices.DeleteFunc(got, func(g Shortfall) bool { return g.Policy == p.With })
			want := path != "userspace" && p.Kernel == "" || p.Kernel == "queue" && path != "userspace" && path != p.Kernel ||
				word == "scheduler" && (path == "nftables" ||
					path == "iptables")
			if len(got) > 1 || (len(got) == 1) != want || want && (got[0].Policy != word || got[0].Reason == "") {
				t.Errorf("%s %s on %s: %+v", word, sample[0], path, got)
			}
		}
		for _, value := range p.without {
			if err := p.Set(s.Policies, value); err != nil ||
				slices.ContainsFunc(Shortfalls(s, "nftables"), func(g Shortfall) bool { return g.Policy == word }) {
				t.Errorf("%s %s: %v, %+v", word, value, err, Shortfalls(s, "nftables"))
			}
		}
	}
}

// TestProxyProtocol: what binds a Service to user space does so for the protocols that have it, and is missed, on every
// path, by the others.
func TestProxyProtocol(t *testing.T) {
	for _, c := range []struct {
		of      lb.Protocol
		version string
		binds   bool
		reason  string
	}{
		{lb.TCP, "v1", true, ""},
		{lb.TCP, "v2", true, ""},
		{lb.UDP, "v2", true, ""},
		{lb.UDP, "v1", false, "UDP has version 2 only: request v2"},
		{lb.SCTP, "v2", false, "SCTP has no PROXY protocol: its endpoints see this node as the client"},
	} {
		s := &lb.Service{ID: lb.ID{Protocol: c.of}, Policies: &lb.Policies{ProxyProtocol: c.version}}
		if p := NeedsUserspace(s); (p != nil) != c.binds || p != nil && p.Word != "proxy-protocol" {
			t.Errorf("%s %s: %+v", c.of, c.version, p)
		}
		var want []Shortfall
		if c.reason != "" {
			want = []Shortfall{{"proxy-protocol", c.version, "none", c.reason}}
		}
		if got := Shortfalls(s, "userspace"); !slices.Equal(got, want) {
			t.Errorf("%s %s: %+v, want %+v", c.of, c.version, got, want)
		}
	}
	if p := NeedsUserspace(&lb.Service{Policies: &lb.Policies{SlowStart: 1}}); p != nil {
		t.Errorf("%+v", p)
	}
}

// TestKeptFrom: a Service is kept from a data path of the kernel by a policy that is of use to its protocol, if it
// requests something.
func TestKeptFrom(t *testing.T) {
	keep := 0
	for _, p := range All() {
		for _, of := range []lb.Protocol{lb.TCP, lb.UDP, lb.SCTP} {
			s := &lb.Service{ID: lb.ID{Protocol: of}, Policies: new(lb.Policies)}
			if err := p.Set(s.Policies, samples[p.Word][0]); err != nil {
				t.Fatal(err)
			}
			want := p.Keeps && (p.Of == nil || slices.Contains(p.Of, of))
			if want {
				keep++
			}
			for _, path := range []string{"queue", "nftables", "iptables", "ipvs"} {
				want := want && p.Kernel != path
				if got := KeptFrom(s, path); (got == p) != want || got != nil && got != p {
					t.Errorf("%s of %s, kept from %s: %v, want %v", p.Word, of, path, got, want)
				}
			}
			if got := KeptFrom(s, "userspace"); got != nil {
				t.Errorf("%s keeps %s from user space", p.Word, of)
			}
			for _, value := range p.without {
				if err := p.Set(s.Policies, value); err != nil || KeptFrom(s, "nftables") != nil {
					t.Errorf("%s %s keeps %s from nftables: %v", p.Word, value, of, err)
				}
			}
		}
	}
	if keep == 0 || KeptFrom(&lb.Service{}, "nftables") != nil {
		t.Errorf("%d policies keep a Service, and one without any is kept", keep)
	}
}

// TestTransparent: what user space lacks is said, once for a Service whatever its endpoints of other nodes are; the
// kernel's data paths have it.
func TestTransparent(t *testing.T) {
	here, elsewhere := lb.Backend{Local: true}, lb.Backend{}
	for _, c := range []struct {
		of       lb.Protocol
		backends []lb.Backend
		reason   string
	}{
		{lb.TCP, []lb.Backend{here}, ""},
		{lb.TCP, []lb.Backend{here, elsewhere},
			"endpoints of other nodes see this node's address, since their answers do not pass it"},
		{lb.UDP, []lb.Backend{here}, "UDP in user space comes from this node's address"},
	} {
		s := &lb.Service{ID: lb.ID{Protocol: c.of}, Backends: c.backends, Policies: &lb.Policies{Transparent: lb.On}}
		var want []Shortfall
		if c.reason != "" {
			want = []Shortfall{{"transparent", "true", "none", c.reason}}
		}
		if got := Shortfalls(s, "userspace"); !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", c.of, got, want)
		}
		if got := Shortfalls(s, "nftables"); got != nil || NeedsUserspace(s) != nil {
			t.Errorf("%s on nftables: %+v", c.of, got)
		}
	}
}

// TestOfUse: what is of no use to a protocol, or without another policy, is no shortfall.
func TestOfUse(t *testing.T) {
	for _, c := range []struct {
		of       lb.Protocol
		requests lb.Policies
		want     string // the policies that path nftables does not have
	}{
		{lb.TCP, lb.Policies{IdleTimeout: 1e9}, "idle-timeout"},
		{lb.UDP, lb.Policies{IdleTimeout: 1e9}, ""},
		{lb.UDP, lb.Policies{UDPIdleTimeout: 1e9, Hold: 1e9}, "hold udp-idle-timeout"},
		{lb.TCP, lb.Policies{UDPIdleTimeout: 1e9, Hold: 1e9}, "hold"},
		{lb.SCTP, lb.Policies{KeepaliveIdle: 1e9, HoldConnections: 5}, ""},
		{lb.TCP, lb.Policies{QueueTimeout: 1e9}, ""},
		{lb.TCP, lb.Policies{QueueTimeout: 1e9, MaxEndpointConnections: 5}, "max-endpoint-connections queue-timeout"},
		{lb.TCP, lb.Policies{QueueTimeout: 1e9, MaxEndpointConnections: -1}, ""},
	} {
		var got []string
		for _, s := range Shortfalls(&lb.Service{ID: lb.ID{Protocol: c.of}, Policies: &c.requests}, "nftables") {
			got = append(got, s.Policy)
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s with %+v: %q, want %q", c.of, c.requests, text, c.want)
		}
	}
}

// TestMisspelt: an annotation of ours whose prefix is not quite so is named, and those of others are not.
func TestMisspelt(t *testing.T) {
	for name, want := range map[string]string{"sluice/hold": "hold", "slucie.io/hold": "hold",
		"sluice.dev/scheduler": "scheduler", "haproxy.org/scheduler": "", "sluice/other": "", "hold": ""} {
		if got := Misspelt(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	_, ignored := Read(map[string]string{"sluice/hold": "30s"}, nil)
	if len(ignored) != 1 || ignored[0].Error() != `"30s": did you mean sluice.io/hold?` {
		t.Errorf("ignored %v", ignored)
	}
}
