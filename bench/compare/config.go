package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/bench/load"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// udpTimeout is how long other proxies keep an idle UDP client: kube-proxy's default of old. Sluice has its own.
const udpTimeout = 250 * time.Millisecond

// Protocols.
const (
	tcp  = "TCP"
	udp  = "UDP"
	sctp = "SCTP"
)

// sctpPort is that of the server and of its service.
const sctpPort = 3868

// service is one address that clients ask and the servers behind it.
type service struct {
	name     string
	protocol string // TCP or UDP
	ip       string
	port     int
	local    int // port of the peers, that the address is redirected to
	target   int // port of the servers
	backends []string

	// Of those that compare algorithms: which one, and where each of the servers is, "address:port", in place of
	// backends.
	scheduler string
	uneven    []string

	rate int // of new connections in a second that a client address may open; 0: no limit
}

func (s service) addr() string { return fmt.Sprintf("%s:%d", s.ip, s.port) }

// targets returns the servers' addresses with their ports.
func (s service) targets() []string {
	out := slices.Clone(s.uneven)
	for _, b := range s.backends {
		out = append(out, fmt.Sprintf("%s:%d", b, s.target))
	}
	return out
}

// Names of the services.
const (
	webService   = "web"      // load.HTTP
	sizedService = "sized"    // load.Sized
	calmService  = "calm"     // the same servers, for others than those of sizedService
	echoService  = "echo"     // load.Echo
	groService   = "echo-gro" // load.EchoGRO
	bulkService  = "bulk"     // iperf3, whose connections must all reach the same server
	dnsService   = "dns"      // dnsmasq
	sctpService  = "sctp"

	limitedService = "limited" // the servers of sizedService, for clients that are limited to clientRate
)

// clientRate is how many connections a client address may open in a second.
const clientRate = 100

// services are the same for all systems; the backends are server hosts.
func services(backends []string) []service {
	return []service{
		{webService, tcp, "10.96.0.10", 80, 30080, 8080, backends, "", nil, 0},
		{sizedService, tcp, "10.96.0.11", 81, 30081, 8081, backends, "", nil, 0},
		{echoService, udp, "10.96.0.12", 82, 30082, 8082, backends, "", nil, 0},
		{bulkService, tcp, "10.96.0.13", 5201, 30083, 5201, backends[:1], "", nil, 0},
		{dnsService, udp, "10.96.0.14", 53, 30084, 53, backends[:1], "", nil, 0},
		{groService, udp, "10.96.0.15", 83, 30085, 8085, backends, "", nil, 0},
		{calmService, tcp, "10.96.0.16", 84, 30086, 8081, backends, "", nil, 0},
		{limitedService, tcp, "10.96.0.17", 85, 30091, 8081, backends, "", nil, clientRate},
		{sctpService, sctp, "10.96.0.38", sctpPort, 0, sctpPort, backends[:1], "", nil, 0},
	}
}

// manifests writes the services for Sluice.
func manifests(list []service) string {
	var documents []string
	for _, s := range list {
		if s.scheduler != "" {
			documents = append(documents, s.unevenManifests()...)
			continue
		}
		documents = append(documents, s.manifest(),
			testbed.SliceManifest(s.name, 1, s.target, s.protocol, s.backends...))
	}
	return strings.Join(documents, "---\n")
}

// manifest writes the Service object for Sluice.
func (s service) manifest() string {
	m := testbed.ServiceManifest(s.name, s.addr(), s.protocol, "")
	if s.rate == 0 {
		return m
	}
	return strings.Replace(m, "\nspec:", fmt.Sprintf("\n  annotations:\n    sluice.io/max-client-connection-rate: '%d'"+
		"\nspec:", s.rate), 1)
}

// haproxyConfig writes the services for HAProxy, which has no UDP.
func haproxyConfig(list []service, workers, connections int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "global\n  nbthread %d\n  maxconn %d\ndefaults\n  mode tcp\n  option splice-auto\n  timeout "+
		"connect 5s\n  timeout client 1h\n  timeout server 1h\n", max(1, workers), connections)
	for _, s := range list {
		if s.protocol != "TCP" {
			continue
		}
		fmt.Fprintf(&b, "listen %s\n  bind :%d backlog 4096\n  balance %s\n", s.name, s.local,
			cmp.Or(haproxyBalance[s.scheduler], "roundrobin"))
		if s.rate > 0 {
			fmt.Fprintf(&b, "  stick-table type ip size 64k expire 10s store conn_rate(1s)\n  tcp-request connection "+
				"reject if { src_conn_rate ge %d }\n  tcp-request connection track-sc0 src\n", s.rate)
		}
		for i, t := range s.targets() {
			fmt.Fprintf(&b, "  server s%d %s\n", i, t)
		}
	}
	return b.String()
}

// nginxConfig writes the services for nginx. module is the path of the stream module
// where it is not built in. A DNS session is over with its answer, as nginx's own
// documentation has it. Several workers have listeners of their own, as its documentation has it for speed.
func nginxConfig(list []service, workers int, dir, module string, connections int) string {
	var b strings.Builder
	if module != "" {
		fmt.Fprintf(&b, "load_module %s;\n", module)
	}
	processes, reuse := "master_process off;", ""
	if workers > 1 {
		processes, reuse = fmt.Sprintf("worker_processes %d;", workers), " reuseport"
	}
	fmt.Fprintf(&b, "daemon off;\n%s\nuser root;\npid %s/nginx.pid;\nerror_log stderr crit;\nevents "+
		"{ worker_connections %d; multi_accept on; }\nstream {\n", processes, dir, 2*connections)
	for _, s := range list {
		fmt.Fprintf(&b, "  upstream %s { %s", s.name, nginxBalance[s.scheduler])
		for _, t := range s.targets() {
			fmt.Fprintf(&b, " server %s;", t)
		}
		listen, more := fmt.Sprintf("%d%s backlog=4096", s.local, reuse), "proxy_timeout 1h;"
		if s.protocol == "UDP" {
			listen = fmt.Sprintf("%d udp%s rcvbuf=4m sndbuf=4m", s.local, reuse)
			more = fmt.Sprintf("proxy_timeout %dms;", udpTimeout.Milliseconds())
		}
		if s.name == dnsService {
			more += " proxy_responses 1;"
		}
		fmt.Fprintf(&b, " }\n  server { listen %s; proxy_pass %s; %s }\n", listen, s.name, more)
	}
	b.WriteString("}\n")
	return b.String()
}

// relayConfig writes the services for the goroutine proxy.
func relayConfig(list []service) load.RelayConfig {
	c := load.RelayConfig{Timeout: udpTimeout}
	for _, s := range list {
		f := load.Forward{Listen: fmt.Sprintf(":%d", s.local), Backends: s.targets()}
		if s.protocol == "TCP" {
			c.TCP = append(c.TCP, f)
		} else {
			c.UDP = append(c.UDP, f)
		}
	}
	return c
}

// redirectRules sends the services to the peers' ports, as iptables-restore reads it.
func redirectRules(list []service) string {
	return natRules(list, func(s service) []string {
		return []string{fmt.Sprintf("-j REDIRECT --to-ports %d", s.local)}
	})
}

// dnatRules has the kernel spread the services over the servers, as kube-proxy's
// iptables mode does.
func dnatRules(list []service) string {
	return natRules(list, func(s service) []string {
		var out []string
		for i, t := range s.targets() {
			chance := ""
			if left := len(s.backends) - i; left > 1 {
				chance = fmt.Sprintf("-m statistic --mode random --probability %.10f ", 1/float64(left))
			}
			out = append(out, chance+"-j DNAT --to-destination "+t)
		}
		return out
	})
}

func natRules(list []service, actions func(service) []string) string {
	var b strings.Builder
	b.WriteString("*nat\n")
	for _, s := range list {
		for _, action := range actions(s) {
			fmt.Fprintf(&b, "-A PREROUTING -d %s/32 -p %s --dport %d %s\n", s.ip, strings.ToLower(s.protocol), s.port,
				action)
		}
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// ipvsRules writes the services as ipvsadm --restore reads them.
func ipvsRules(list []service) string {
	var b strings.Builder
	for _, s := range list {
		kind := map[string]string{tcp: "-t", udp: "-u", sctp: "--sctp-service"}[s.protocol]
		fmt.Fprintf(&b, "-A %s %s -s rr\n", kind, s.addr())
		for _, t := range s.targets() {
			fmt.Fprintf(&b, "-a %s %s -r %s -m\n", kind, s.addr(), t)
		}
	}
	return b.String()
}
