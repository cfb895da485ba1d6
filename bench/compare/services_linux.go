package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-lb/sluice/bench/load"
	"github.com/sluice-lb/sluice/bench/report"
	"github.com/sluice-lb/sluice/bench/stats"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// whoPort is where the server hosts answer with their names.
const whoPort = 8090

// serviceWorkloads show what the number of Services costs.
func serviceWorkloads() []workload {
	var all []workload
	for _, c := range []struct {
		kind     string // of the name
		protocol string
		mode     string // of --proxy-mode; empty for the default
		services int
		quick    bool
	}{
		{"", "TCP", "", 10, true}, {"", "TCP", "", 100, false}, {"", "TCP", "", 1000, false},
		{"", "TCP", "", 10000, true},
		{"udp-", "UDP", "", 10, false}, {"udp-", "UDP", "", 100, false}, {"udp-", "UDP", "", 1000, false},
		{"win-", "TCP", "winuserspace", 10, false}, {"win-", "TCP", "winuserspace", 2000, false},
		{"win-udp-", "UDP", "winuserspace", 2000, false},
	} {
		about := fmt.Sprintf("start, one change and new clients of Sluice with %d %s Services of 10 endpoints",
			c.services, c.protocol)
		s := scaled{protocol: c.protocol, services: c.services}
		if c.mode != "" {
			about += ", in mode " + c.mode
			s.flags = []string{"--proxy-mode", c.mode}
		}
		all = append(all, workload{
			name: fmt.Sprintf("services-%s%d", c.kind, c.services), alone: true, quick: c.quick, about: about,
			needs: []string{"iptables-save", "ip6tables-save", "nft"},
			run: func(ctx context.Context, l *lab, _ *running, d time.Duration) ([]figure, error) {
				s := s
				s.lab = l
				return s.measure(ctx, d)
			},
		})
	}
	return all
}

// scaled is Sluice with many Services.
type scaled struct {
	*lab
	protocol string
	services int
	port     int      // of the pods that all Services but the one that changes lead to
	flags    []string // of the program, besides the usual
	dir      string
}

// clusterIP returns the address of Service i, of which there are at most 16,000.
func clusterIP(i int) string { return fmt.Sprintf("10.97.%d.%d", i/250, 1+i%250) }

// scaledEndpoints is of how many endpoints a Service is.
const scaledEndpoints = 10

// alias is address e of a pod, beside its own. Those of pods next to each other differ.
func alias(pod *testbed.Host, e int) string {
	a := pod.Addr4.As4()
	a[3] = a[3]*scaledEndpoints + byte(e)
	return netip.AddrFrom4(a).String()
}

// manifest describes Service i and its ten endpoints. Those of TCP are some pods by ten addresses. Of UDP, where a pod
// answers from its own address alone, the others do not exist and are not ready, so that every client is answered.
func (s *scaled) manifest(i, port int, pods ...*testbed.Host) string {
	var addrs []string
	for _, pod := range pods {
		addrs = append(addrs, pod.Addr4.String())
	}
	for e := len(pods); s.protocol == "TCP" && e < scaledEndpoints; e++ {
		addrs = append(addrs, alias(pods[e%len(pods)], e))
	}
	name := fmt.Sprint("s", i)
	b := testbed.ServiceManifest(name, clusterIP(i)+":80", s.protocol, "") + "---\n" +
		testbed.SliceManifest(name, 1, port, s.protocol, addrs...)
	for k := range scaledEndpoints - len(addrs) {
		b += fmt.Sprintf("- addresses: [10.245.%d.%d]\n  conditions: {ready: false}\n", i%250, k+1)
	}
	return b
}

// prepare writes a file aside and returns what puts it in its place.
func (s *scaled) prepare(name, content string) (replace func() error, err error) {
	tmp := filepath.Join(s.dir, "."+name)
	if err := os.WriteFile(tmp, []byte(content), 0o644); err != nil {
		return nil, err
	}
	return func() error { return os.Rename(tmp, filepath.Join(s.dir, name)) }, nil
}

func (s *scaled) measure(ctx context.Context, d time.Duration) (figures []figure, err error) {
	s.port = s.service(sizedService).target
	if s.protocol == "UDP" {
		s.port = s.service(echoService).target
	}
	r, ready, err := s.start(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	rules, err := s.rules(ctx)
	if err != nil {
		return nil, err
	}
	whole, again, inside, err := s.changes(ctx, changesOf)
	if err != nil {
		return nil, err
	}
	res, err := s.newClients(ctx, r, d)
	if err != nil {
		return nil, err
	}
	resident, err := testbed.ResidentBytes(r.pid())
	first := res.First50
	if s.protocol == "UDP" {
		first = res.P50
	}
	return []figure{
		{"first byte", "us", first}, {"ready", "ms", ms(ready)},
		{"change", "ms", stats.Median(whole)}, {"change p99", "ms", stats.Percentile(whole, 99)},
		{"made again", "", float64(again)},
		{"sync", "ms", inside.seconds * 1000 / inside.count}, // the mean
		{"rules", "", float64(rules)}, {"resident", "MiB", float64(resident) / (1 << 20)},
		{"errors", "", float64(res.Errors + res.Lost)},
	}, err
}

// start starts Sluice with one file for the bulk of the Services, and one for the Service that changes,
// and returns how long it took to be ready.
func (s *scaled) start(ctx context.Context) (r *running, ready time.Duration, err error) {
	if err := s.introduce(ctx); err != nil {
		return nil, 0, err
	}
	if s.dir, err = os.MkdirTemp(s.lab.dir, "services-"); err != nil {
		return nil, 0, err
	}
	var bulk bytes.Buffer
	for i := 1; i < s.services; i++ {
		bulk.WriteString("---\n" + s.manifest(i, s.port, s.tb.Pods...))
	}
	err = errors.Join(testbed.WriteManifest(s.dir, "bulk.yaml", bulk.String()),
		testbed.WriteManifest(s.dir, "one.yaml", s.manifest(0, whoPort, s.tb.Pods[0])))
	started := time.Now()
	if err == nil {
		r, err = s.sluiceWith(ctx, report.Ours, s.sluice, s.dir, s.flags...)
	}
	ready = time.Since(started)
	if err != nil {
		return nil, 0, errors.Join(err, os.RemoveAll(s.dir))
	}
	stop := r.stop
	r.stop = func() error { return errors.Join(stop(), os.RemoveAll(s.dir)) }
	return r, ready, nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// introduce starts the servers that say who they are and adds the pods' addresses, the first time.
func (s *scaled) introduce(ctx context.Context) error {
	if len(s.lab.who) > 0 {
		return nil
	}
	for _, pod := range s.tb.Pods {
		tcp, err := pod.WhoTCP(fmt.Sprintf(":%d", whoPort))
		if err != nil {
			return err
		}
		s.lab.who = append(s.lab.who, tcp)
		udp, err := pod.WhoUDP(fmt.Sprintf("%s:%d", pod.Addr4, whoPort))
		if err != nil {
			return err
		}
		s.lab.who = append(s.lab.who, udp)
		for e := range scaledEndpoints {
			if err := pod.Command(ctx, "ip", "address", "add", alias(pod, e)+"/24", "dev", "eth0").Run(); err != nil {
				return fmt.Errorf("add address %d to %s: %w", e, pod, err)
			}
		}
	}
	return ctx.Err()
}

// rules counts the rules of both families, by either packet filter.
func (s *scaled) rules(ctx context.Context) (int, error) {
	n := 0
	for _, save := range []string{"iptables-save", "ip6tables-save"} {
		out, err := s.tb.Node.Command(ctx, save).Output()
		if err != nil {
			return 0, fmt.Errorf("count rules: %w", err)
		}
		n += bytes.Count(out, []byte("\n-A "))
	}
	for _, family := range []string{"ip", "ip6"} {
		list := []string{"--handle", "--terse", "list", "table", family, "sluice-steering"}
		out, err := s.tb.Node.Command(ctx, "nft", list...).Output()
		if err != nil {
			continue // iptables steers, or there is no such family
		}
		opens := bytes.Count(out, []byte("{ # handle ")) // tables, chains and sets
		n += bytes.Count(out, []byte(" # handle ")) - opens
	}
	return n, nil
}

// newClients has one new client after the other ask Services all over the range.
func (s *scaled) newClients(ctx context.Context, r *running, d time.Duration) (load.Result, error) {
	c := load.AskConfig{Kind: load.Short, Number: 1, Request: 64, Response: 200, Warm: warm, Duration: d}
	if s.protocol == "UDP" {
		c.Kind, c.Fresh = load.Datagrams, true
	}
	for _, a := range s.others(min(s.services-1, mostAsked)) {
		c.Addrs = append(c.Addrs, a+":80")
	}
	res, _, err := s.lab.measure(ctx, r, c)
	if err == nil && res.Operations == 0 {
		err = fmt.Errorf("no new client was answered: %d errors (%s), %d lost", res.Errors, res.FirstError, res.Lost)
	}
	return res, err
}

// mostAsked is how many Services new clients ask at the most.
const mostAsked = 97

// others returns the cluster IPs of count Services all over the range, without the one that changes.
func (s *scaled) others(count int) (ips []string) {
	others := s.services - 1
	for i := range count {
		ips = append(ips, clusterIP(1+i*others/count))
	}
	return ips
}
