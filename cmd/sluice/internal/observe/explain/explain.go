package explain

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
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/cli"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kube"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/manifest"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/node"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/policies"
	"github.com/sluice-lb/sluice/kernelmodes/iptables/trace"
	"github.com/sluice-lb/sluice/kernelmodes/nftables"
	"github.com/sluice-lb/sluice/kernelmodes/queue"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

const usage = `Shows which endpoint a client of a Service is sent to, and why.

Usage:
  sluice explain [flags] [CLIENT] NAMESPACE/NAME[:PORT]
  sluice explain [flags] [CLIENT] [PROTOCOL] ADDRESS:PORT

CLIENT is the address of the client. Without --manifests the running process answers; it knows remembered clients,
ejected endpoints and connections in flight. With --manifests the answer is for a process that has just started with
these manifests and with the flags after it.

`

// query is what explain was asked.
type query struct {
	socket string // of the running process
	form   string // of its answer

	manifests []string
	node      string
	zone      string
	mode      string
	client    string
	arrives   string // the interface that the client's packet comes by
	rules     string // file with the output of iptables-save
	metrics   string // address where the running program serves its metrics
	subject   []string
}

// Run writes to stdout what the arguments ask for. An error is one of the arguments, or of
// what they name.
func Run(args []string, stdout io.Writer) error {
	var q query
	f := pflag.NewFlagSet("explain", pflag.ContinueOnError)
	f.SetOutput(io.Discard) // the caller prints the error, once
	f.SortFlags = false
	f.SetNormalizeFunc(cli.SocketAlias)
	f.StringVar(&q.socket, "api-socket", config.DefaultAPISocket, "`PATH` that the running process was given")
	f.StringVarP(&q.form, "output", "o", "text", "`FORM` of the running process's answer: text, json or yaml")
	f.StringVar(&q.client, "client", "", "`ADDRESS` of the client; empty: unknown, on another host")
	f.StringArrayVar(&q.manifests, "manifests", nil,
		"`PATH` of a file or folder of manifests; may be given several times")
	f.StringVar(&q.node, "hostname-override", "", "`NAME` of this node; empty: the host's name")
	f.StringVar(&q.zone, "node-zone", "", "`ZONE` of this node; empty: that of its Node manifest")
	f.StringVar(&q.mode, "proxy-mode", "userspace", "`MODE` of the running program")
	f.StringVar(&q.arrives, "interface", "eth0",
		"`INTERFACE` by which the client's packet arrives; empty: this node sends it")
	f.StringVar(&q.rules, "rules", "",
		"`FILE` with the output of iptables-save (or ip6tables-save) to walk through; empty: that of this host")
	f.StringVar(&q.metrics, "metrics-bind-address", "127.0.0.1:10249",
		"`ADDRESS` of the running program's metrics, which report its packet filter and SCTP engine; empty: it is "+
			"not asked")
	help := f.BoolP("help", "h", false, "print this help and exit")
	err := f.Parse(args)
	if *help {
		fmt.Fprint(stdout, usage, f.FlagUsages())
		return nil
	}
	if err != nil {
		return err
	}
	q.subject = f.Args()
	if len(q.subject) > 1 && q.client == "" {
		if _, err := netip.ParseAddr(q.subject[0]); err == nil {
			q.client, q.subject = q.subject[0], q.subject[1:]
		}
	}
	if err := misplaced(f, len(q.manifests) > 0); err != nil {
		return err
	}
	if len(q.manifests) == 0 {
		return q.ask(stdout)
	}
	return q.answer(stdout)
}

// misplaced is an error of a flag that is for the other case.
func misplaced(f *pflag.FlagSet, manifests bool) (err error) {
	asking := []string{"api-socket", "output"}
	both := []string{"client", "manifests", "help"}
	f.Visit(func(given *pflag.Flag) {
		switch of := slices.Contains(asking, given.Name); {
		case err != nil || slices.Contains(both, given.Name):
		case of && manifests:
			err = fmt.Errorf("--%s is for what a running process says, and with --manifests none is asked: leave out "+
				"one of them", given.Name)
		case !of && !manifests:
			err = fmt.Errorf("--%s is for what is computed of --manifests: give these, too, or leave it out",
				given.Name)
		}
	})
	return err
}

// answer writes what becomes of the client.
func (q *query) answer(w io.Writer) (err error) {
	mode, ok := agent.ParsePath(q.mode)
	if q.mode == config.ModeWinUserspace { // the same, by other sockets
		mode, ok = agent.Userspace, true
	}
	if !ok {
		return fmt.Errorf("--proxy-mode %q is unknown: give userspace, queue, nftables, iptables, ipvs, auto or "+
			"winuserspace", q.mode)
	}
	var client netip.Addr
	if q.client != "" {
		if client, err = netip.ParseAddr(q.client); err != nil {
			return fmt.Errorf("--client %q is not an IP address: give one like 192.0.2.100", q.client)
		}
	}
	var local []netip.Addr // of this host, if it is the node
	if q.node == "" {
		if local, err = node.LocalAddrs(); err != nil {
			return err
		}
		if q.node, err = os.Hostname(); err != nil {
			return err
		}
	}
	objects, err := q.objects()
	if err != nil {
		return err
	}
	r := new(kube.Converter).Convert(objects, kube.Options{Whole: true,
		Facts: kube.Facts{NodeName: q.node, Zone: q.zone}})
	here := r.Facts.Node
	here.Addresses = slices.Concat(here.Addresses, local)
	primary := slices.Concat(r.Facts.Addresses, node.DefaultAddrs())
	here.NodePorts = config.DefaultNodePorts(mode.String()).Resolve(here.Addresses, primary)
	table, err := lb.NewTable(r.Services.AppendTo(nil), here)
	if err != nil {
		fmt.Fprintln(w, err) // the rest is served
	}
	var b balancer.Balancer
	b.Update(table)
	frontends, err := q.frontends(table)
	if err != nil {
		return err
	}
	for i, f := range frontends {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprint(w, b.Explain(balancer.Flow{Frontend: f, Client: client}))
		s, at, ok := table.Lookup(f)
		if !ok {
			continue
		}
		c := agent.Choose(s, mode)
		fmt.Fprintf(w, "data path %s: %s\n", c.Path, c.Why)
		if c.Fallback != "" {
			fmt.Fprintf(w, "  fallback: %s\n", c.Fallback)
		}
		if c.Path == agent.Userspace && q.mode != config.ModeWinUserspace && !f.Addr.Addr().IsUnspecified() {
			fmt.Fprintf(w, "  packet filter %s\n", q.packetFilter())
		}
		writePolicies(w, s, c.Path)
		writeFindings(w, r.Findings, s.ID.Service())
		if f.Protocol == lb.SCTP && c.Path == agent.Userspace {
			fmt.Fprintf(w, "  SCTP engine %s\n", q.sctpEngine())
		}
		switch c.Path {
		case agent.IPTables:
			err = q.walk(w, f, client, r.Facts.Node.Addresses)
		case agent.NFTables, agent.Queue:
			writeElements(w, s, *at, here, c.Path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// writeFindings writes what was found about a Service.
func writeFindings(w io.Writer, all []kube.Findings, service lb.Name) {
	for _, found := range all {
		for i := range found.List {
			if found.Service == service {
				fmt.Fprintln(w, found.List[i].Describe(service.Namespace))
			}
		}
	}
}

// writeElements writes what of the tables of nf_tables decides about an address, with the flags' defaults.
func writeElements(w io.Writer, s *lb.Service, a lb.Address, here lb.Node, path agent.Path) {
	e := &nftables.Engine{IPv6: s.ID.IPv6}
	if path == agent.Queue {
		e.Ask = nftables.Ask{First: queue.First, Count: uint16(runtime.NumCPU()), Mask: queue.Mask}
	}
	for i, line := range e.Explain(s, a, here) {
		if i == 0 {
			fmt.Fprintf(w, "by %s, unless flags say otherwise, the first packet meets\n", line)
			continue
		}
		fmt.Fprintf(w, "  %s\n", line)
	}
}

// writePolicies writes what a Service requests, and what it does not have of that on its data path.
func writePolicies(w io.Writer, s *lb.Service, path agent.Path) {
	for _, p := range policies.All() {
		if value := p.Shown(s.Requests()); value != "" {
			fmt.Fprintf(w, "policy %s: %s\n", p.Word, value)
		}
	}
	for _, s := range policies.Shortfalls(s, path.String()) {
		fmt.Fprintf(w, "  without %s %s: %s\n", s.Policy, s.Requested, s.Reason)
	}
}

// objects reads the manifests. Any problem in them is an error.
func (q *query) objects() (kube.Objects, error) {
	loader := &manifest.Loader{Paths: q.manifests}
	result, _ := loader.Load()
	var problems []error
	for _, p := range result.Problems {
		problems = append(problems, p)
	}
	return result.Objects, errors.Join(problems...)
}

// frontends returns what is asked about: an address, or all addresses of a Service.
func (q *query) frontends(table *lb.Table) (out []lb.Frontend, err error) {
	t, err := q.target()
	if err != nil {
		return nil, err
	}
	if t.addr.IsValid() {
		for _, p := range protocols {
			f := lb.Frontend{Protocol: p, Addr: t.addr}
			_, _, served := table.Lookup(f)
			if p == t.protocol || t.protocol == 0 && served {
				out = append(out, f)
			}
		}
		if len(out) == 0 {
			out = append(out, lb.Frontend{Protocol: lb.TCP, Addr: t.addr})
		}
		return out, nil
	}
	for _, s := range table.Services() {
		if s.ID.Service() != t.service || t.port != "" && !api.HasPort(s, t.port) {
			continue
		}
		for _, a := range s.Addresses {
			out = append(out, lb.Frontend{Protocol: s.Protocol, Addr: a.Addr})
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no Service %s has an address in these manifests", q.subject[0])
	}
	return out, nil
}

// packetFilter says what steers to the running program, and why.
func (q *query) packetFilter() string {
	filter, reason, unknown := q.inEffect("packet_filter")
	const rule = "nftables where the kernel can, else iptables, unless --packet-filter forces one"
	switch {
	case unknown != "":
		return unknown + ": " + rule
	case filter == "":
		return "none: the running program steers nothing"
	case reason == "requested":
		return filter + ": requested by --packet-filter"
	case filter == config.NFTables:
		return filter + ": the kernel can"
	}
	return filter + ": the kernel cannot do it by nftables, the log says why"
}

// sctpEngine says which engine the running program forwards SCTP with, and why.
func (q *query) sctpEngine() string {
	engine, reason, unknown := q.inEffect("sctp_engine")
	const rule = "the kernel's sockets where it has SCTP, else packets, unless --sctp-engine forces one"
	switch {
	case unknown != "":
		return unknown + ": " + rule
	case engine == "":
		return "not chosen yet, since the running program has had no SCTP Service: " + rule
	case reason == "requested":
		return engine + ": requested by --sctp-engine"
	case engine == "socket":
		return engine + ": the kernel has SCTP"
	}
	return engine + ": the kernel has no SCTP"
}

// inEffect returns what the running program says of a setting; nothing if it does not say. Unless unknown is empty it
// says why the program cannot be asked.
func (q *query) inEffect(setting string) (value, reason, unknown string) {
	if q.metrics == "" {
		return "", "", "not asked for"
	}
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get("http://" + q.metrics + "/metrics")
	if err != nil {
		return "", "", fmt.Sprintf("unknown, since the program does not answer (%v)", err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		n, _ := fmt.Sscanf(lines.Text(), "sluice_setting_info{reason=%q,setting="+strconv.Quote(setting)+",value=%q}",
			&reason, &value)
		if n == 2 {
			return value, reason, ""
		}
	}
	if err := lines.Err(); err != nil || resp.StatusCode != http.StatusOK {
		unknown = fmt.Sprintf("unknown, since the program's metrics cannot be read (%s, %v)", resp.Status, err)
	}
	return "", "", unknown
}

// walk writes where the client's first packet to f gets by the rules of this host, or of a file.
func (q *query) walk(w io.Writer, f lb.Frontend, client netip.Addr, addresses []netip.Addr) error {
	text, where, err := q.readRules(f.Addr.Addr().Is6())
	if err != nil {
		return err
	}
	if text == "" {
		fmt.Fprintf(w, "  the rules of this host cannot be read (%s): run as root, or give --rules\n", where)
		return nil
	}
	rules, err := trace.Parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	if q.rules == "" {
		if local, err := node.LocalAddrs(); err == nil {
			addresses = slices.Concat(addresses, local)
		}
	}
	dst := f.Addr
	if !client.IsValid() {
		client = netip.MustParseAddr("192.0.2.1") // a documentation address (RFC 5737, RFC 3849)
		if dst.Addr().Is6() {
			client = netip.MustParseAddr("2001:db8::1")
		}
	}
	external := func(a netip.Addr) bool { return a.Is6() == dst.Addr().Is6() && !a.IsLoopback() }
	if i := slices.IndexFunc(addresses, external); dst.Addr().IsUnspecified() && i >= 0 {
		dst = netip.AddrPortFrom(addresses[i], dst.Port()) // a node port
	}
	p := trace.Packet{Protocol: strings.ToLower(f.Protocol.String()), Src: netip.AddrPortFrom(client, 1024), Dst: dst,
		In: q.arrives}
	fmt.Fprintf(w, "by the rules of %s, the first packet from %s to %s is\n", where, client, dst)
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

// readRules returns the output of iptables-save, and what it was read from. Empty: this
// host's cannot be read, and where says why.
func (q *query) readRules(ipv6 bool) (text, where string, err error) {
	if q.rules != "" {
		b, err := os.ReadFile(q.rules)
		return string(b), q.rules, err
	}
	save := "iptables-save"
	if ipv6 {
		save = "ip6tables-save"
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	b, err := exec.CommandContext(ctx, save).Output()
	if err != nil {
		return "", fmt.Sprintf("%s: %v", save, err), nil
	}
	return string(b), save, nil
}
