package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/kube"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/manifest"
	"github.com/sluice-lb/sluice/kernelmodes/iptables/trace"
	"github.com/sluice-lb/sluice/lb"
)

const explainUsage = `Says what becomes of a client that asks a Service, and why.

Usage:
  sluice explain --manifests PATH [flags] NAMESPACE/NAME
  sluice explain --manifests PATH [flags] PROTOCOL ADDRESS:PORT

`

// question is what explain was asked.
type question struct {
	manifests []string
	node      string
	zone      string
	mode      string
	client    netip.Addr
	arrives   string // the interface that the client's packet comes by
	rules     string // file with the output of iptables-save
	metrics   string // where the running program answers
	what      []string
}

// explain is the subcommand of that name; it returns the exit code.
func explain(args []string, stdout, stderr io.Writer) int {
	var q question
	var client string
	f := pflag.NewFlagSet("explain", pflag.ContinueOnError)
	f.SetOutput(io.Discard) // the error is printed below, once
	f.StringArrayVar(&q.manifests, "manifests", nil, "`PATH` of a file or folder of manifests; may be given several times")
	f.StringVar(&q.node, "hostname-override", "", "`NAME` of this node; empty: the host's name")
	f.StringVar(&q.zone, "node-zone", "", "`ZONE` of this node; empty: that of its Node manifest")
	f.StringVar(&q.mode, "proxy-mode", "userspace", "`MODE` of the program that is asked about")
	f.StringVar(&client, "client", "", "`ADDRESS` of the client; empty: not known, and somewhere else")
	f.StringVar(&q.arrives, "interface", "eth0", "`INTERFACE` by which the client's packet arrives; empty: this node sends it")
	f.StringVar(&q.rules, "rules", "", "`FILE` with the output of iptables-save (or ip6tables-save) to walk through; empty: that of this host")
	f.StringVar(&q.metrics, "metrics-bind-address", "127.0.0.1:10249", "`ADDRESS` of the running program's metrics, which tell what it forwards SCTP by; empty: it is not asked")
	help := f.BoolP("help", "h", false, "print this help and exit")
	err := f.Parse(args)
	if *help {
		fmt.Fprint(stdout, explainUsage, f.FlagUsages())
		return 0
	}
	q.what = f.Args()
	if err == nil && client != "" {
		if q.client, err = netip.ParseAddr(client); err != nil {
			err = fmt.Errorf("--client %q is not an IP address: give one like 192.0.2.100", client)
		}
	}
	if err == nil && q.node == "" {
		q.node, err = os.Hostname()
	}
	if err == nil {
		err = q.answer(stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "sluice explain: %v (see sluice explain --help)\n", err)
		return 1
	}
	return 0
}

// answer writes what becomes of the client.
func (q *question) answer(w io.Writer) error {
	mode, ok := agent.ParsePath(q.mode)
	if q.mode == config.ModeWinUserspace { // the same, by other sockets
		mode, ok = agent.Userspace, true
	}
	if !ok {
		return fmt.Errorf("--proxy-mode %q is unknown: give userspace, iptables, ipvs or winuserspace", q.mode)
	}
	if len(q.manifests) == 0 {
		return errors.New("nothing says which Services there are: give --manifests with a file or folder")
	}
	loader := &manifest.Loader{Paths: q.manifests}
	result, _ := loader.Load()
	var problems []error
	for _, p := range result.Problems {
		problems = append(problems, p)
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	var convert kube.Converter
	r := convert.Convert(result.Objects, kube.Options{Facts: kube.Facts{NodeName: q.node, Zone: q.zone}})
	table, err := lb.NewTable(r.Services, r.Facts.Node)
	if err != nil {
		fmt.Fprintln(w, err) // the rest is served
	}
	var balancer lb.Balancer
	balancer.Update(table)
	frontends, err := q.frontends(table)
	if err != nil {
		return err
	}
	for i, f := range frontends {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprint(w, balancer.Explain(lb.Flow{Frontend: f, Client: q.client}))
		s, _, ok := table.Lookup(f)
		if !ok {
			continue
		}
		c := agent.Choose(s, mode)
		fmt.Fprintf(w, "data path %s: %s\n", c.Path, c.Why)
		if c.Unmet != "" {
			fmt.Fprintf(w, "  not as wished: %s\n", c.Unmet)
		}
		if s.Protocol == lb.SCTP && c.Path == agent.Userspace {
			fmt.Fprintf(w, "  SCTP engine %s\n", q.sctpEngine())
		}
		if c.Path == agent.IPTables {
			if err := q.walk(w, f, r.Facts.Node); err != nil {
				return err
			}
		}
	}
	return nil
}

// frontends returns what is asked about: an address, or all addresses of a Service.
func (q *question) frontends(table *lb.Table) (out []lb.Frontend, err error) {
	switch len(q.what) {
	case 1:
		services := table.Services()
		for i := range services {
			s := &services[i]
			if s.Namespace+"/"+s.Name != q.what[0] {
				continue
			}
			for _, a := range s.Addresses {
				out = append(out, lb.Frontend{Protocol: s.Protocol, Addr: a.Addr})
			}
		}
		if len(out) == 0 {
			return nil, fmt.Errorf("no Service %s has an address in these manifests", q.what[0])
		}
		return out, nil
	case 2:
		protocols := []lb.Protocol{lb.TCP, lb.UDP, lb.SCTP}
		i := slices.IndexFunc(protocols, func(p lb.Protocol) bool { return strings.EqualFold(p.String(), q.what[0]) })
		addr, err := netip.ParseAddrPort(q.what[1])
		if i < 0 || err != nil {
			return nil, fmt.Errorf("%q %q is not a protocol and an address: give tcp 10.96.0.80:80, for example", q.what[0], q.what[1])
		}
		return []lb.Frontend{{Protocol: protocols[i], Addr: addr}}, nil
	}
	return nil, errors.New("name a Service, or a protocol and an address")
}

// sctpEngine says by which engine the running program forwards SCTP, and why.
func (q *question) sctpEngine() string {
	const rule = "the kernel's sockets where it has SCTP, else packets, unless --sctp-engine forces one"
	if q.metrics == "" {
		return "not asked for: " + rule
	}
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get("http://" + q.metrics + "/metrics")
	if err != nil {
		return fmt.Sprintf("not known, since the program does not answer (%v): %s", err, rule)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		var engine, why string
		if n, _ := fmt.Sscanf(lines.Text(), "sluice_sctp_engine{engine=%q,why=%q}", &engine, &why); n == 2 {
			return fmt.Sprintf("%s: %s", engine, why)
		}
	}
	if err := lines.Err(); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Sprintf("not known, since the program's metrics cannot be read (%s, %v): %s", resp.Status, err, rule)
	}
	return "not chosen yet, since the running program has had no SCTP Service: " + rule
}

// walk writes where a packet to f gets by the rules of this host, or of a file.
func (q *question) walk(w io.Writer, f lb.Frontend, node lb.Node) error {
	addresses := slices.Clone(node.Addresses)
	text, where := "", q.rules
	if q.rules != "" {
		b, err := os.ReadFile(q.rules)
		if err != nil {
			return err
		}
		text = string(b)
	} else {
		where = "iptables-save"
		if f.Addr.Addr().Is6() {
			where = "ip6tables-save"
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		b, err := exec.CommandContext(ctx, where).Output()
		if err != nil {
			fmt.Fprintf(w, "  the rules of this host cannot be read (%s: %v): run as root, or give --rules\n", where, err)
			return nil
		}
		text = string(b)
		if local, err := localAddrs(); err == nil {
			addresses = append(addresses, local...)
		}
	}
	rules, err := trace.Parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	p := trace.Packet{Protocol: strings.ToLower(f.Protocol.String()), Dst: f.Addr, In: q.arrives}
	client, dst := q.client, f.Addr.Addr()
	if !client.IsValid() {
		client = netip.MustParseAddr("192.0.2.1") // a documentation address (RFC 5737, RFC 3849)
		if dst.Is6() {
			client = netip.MustParseAddr("2001:db8::1")
		}
	}
	p.Src = netip.AddrPortFrom(client, 1024)
	if i := slices.IndexFunc(addresses, func(a netip.Addr) bool { return a.Is6() == dst.Is6() && !a.IsLoopback() }); dst.IsUnspecified() && i >= 0 {
		p.Dst = netip.AddrPortFrom(addresses[i], f.Addr.Port()) // a node port
	}
	fmt.Fprintf(w, "by the rules of %s, the first packet from %s to %s is\n", where, p.Src.Addr(), p.Dst)
	for _, o := range rules.Trace(trace.Node{Addresses: addresses}, p) {
		fmt.Fprintf(w, "  %s\n", o)
		for _, step := range o.Steps {
			fmt.Fprintf(w, "    %s\n", step)
		}
		for _, note := range o.Notes {
			fmt.Fprintf(w, "    not sure: %s\n", note)
		}
	}
	return nil
}
