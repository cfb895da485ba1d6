package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// introduce says what there is before anything is shown.
func introduce(r *report, l *lab) {
	fmt.Fprintln(r.out, "Sluice is a layer-4 load balancer for Kubernetes Services. "+
		"Here it works in user space, without a cluster.")
	fmt.Fprintln(r.out, "\nThese hosts are network namespaces. The network of your machine is not touched.")
	for _, h := range []struct {
		host *testbed.Host
		what string
	}{{l.Client, "a machine outside of the cluster"}, {l.Node, "the node, where Sluice runs"}} {
		r.line("%-9s %-13s %s", h.host.Name, h.host.Addr4, h.what)
	}
	for _, p := range l.Pods {
		what := "pod with a web server (port 8080) that answers with its name"
		if slices.Contains(l.dns, p) {
			what = "pod with dnsmasq (port 53) and a TXT record of its name"
		}
		r.line("%-9s %-13s %s", p.Name, p.Addr4, what)
	}
	fmt.Fprintln(r.out, "These are the Services of the manifests in deploy/examples. No host has such an address.")
	r.line("%-9s %-13s %s", "web", webVIP, "TCP port 80, to the web pods")
	r.line("%-9s %-13s %s", "sticky", stickyVIP, "the same, but a client stays with its pod")
	r.line("%-9s %-13s %s", "dns", dnsVIP, "UDP and TCP port 53, to the DNS pods")
}

// callers are the kinds of clients that a node has.
func (l *lab) callers() []*testbed.Host { return []*testbed.Host{l.Client, l.Node, l.web[0]} }

func start(ctx context.Context, r *report, l *lab) (err error) {
	r.heading("Start", "Sluice reads a folder of manifests. /healthz answers 200 when it is ready.")
	if l.before, err = l.Node.KernelState(ctx); err != nil {
		return err
	}
	l.flags = []string{"--manifests", l.manifests, "--handover-socket", filepath.Join(l.dir, "run", "handover.sock"),
		"--drain-timeout", "2s"}
	r.command("node", append([]string{"sluice"}, l.flags...)...)
	began := time.Now()
	if l.sluice, err = l.Node.Command(ctx, l.program, l.flags...).Launch(); err != nil {
		return err
	}
	err = l.sluice.Healthy(ctx, testbed.HealthURL)
	r.promise(err == nil, "/healthz answers 200 (after %d ms)", time.Since(began).Milliseconds())
	return err
}

func balanceWeb(ctx context.Context, r *report, l *lab) error {
	r.heading("HTTP", "It balances exactly: each connection goes to the next endpoint,",
		"for a client outside, for the node and for a pod (also to itself).")
	even, err := curlEach(ctx, r, l, webVIP, 30, func(t *tally) bool { return t.spread(names(l.web)) })
	if err != nil {
		return err
	}
	r.promise(even, "every client gets every endpoint, and no request fails")
	return nil
}

// curlEach has every caller ask n times, and reports whether what each got is good.
func curlEach(ctx context.Context, r *report, l *lab, vip string, n int, good func(*tally) bool) (bool, error) {
	showCurl(r, "each", vip, n)
	var tallies []*tally
	all := true
	for _, h := range l.callers() {
		t, err := curl(ctx, h, vip, n)
		if err != nil {
			return false, err
		}
		all = all && good(t)
		tallies = append(tallies, t)
	}
	r.table(names(l.web), tallies...)
	return all, nil
}

func balanceDNS(ctx context.Context, r *report, l *lab) error {
	r.heading("DNS", "The same for UDP, where each dig is a new flow, and for TCP at the same address and port.")
	const n = 9
	for _, transport := range []string{"+notcp", "+tcp"} {
		r.command("each", append([]string{"dig"}, digArgs(dnsVIP, transport)...)...)
		var tallies []*tally
		even := true
		for _, h := range l.callers() {
			t := dig(ctx, h, dnsVIP, transport, n)
			even = even && t.spread(names(l.dns))
			tallies = append(tallies, t)
		}
		r.table(names(l.dns), tallies...)
		r.promise(even, "every client gets every endpoint, and no query is lost")
	}
	return nil
}

func stick(ctx context.Context, r *report, l *lab) error {
	r.heading("Session affinity", "With sessionAffinity: ClientIP, a client keeps the endpoint that it got first.")
	const n = 12
	one := func(t *tally) bool { return len(t.answers) == 1 && t.total() == n }
	stuck, err := curlEach(ctx, r, l, stickyVIP, n, one)
	if err != nil {
		return err
	}
	r.promise(stuck, "each client has one endpoint")
	return nil
}

func scale(ctx context.Context, r *report, l *lab) error {
	r.heading("Scaling under load",
		"Two clients ask without pause while web-endpoints.yaml changes: three endpoints, one, three.",
		"A change is applied immediately, without a reload.")
	loads, stop, err := startLoads(ctx, webVIP, l.Client, l.Node)
	defer stop()
	if err != nil {
		return err
	}
	var tallies []*tally
	right, failed := true, 0
	for _, pods := range [][]*testbed.Host{l.web, l.web[:1], l.web} {
		if err := l.scaleWeb(pods); err != nil {
			return err
		}
		for _, ld := range loads {
			if err := ld.await(ctx, names(pods)); err != nil {
				return err
			}
			failed += ld.begin().failed
		}
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		for _, ld := range loads {
			t := ld.begin()
			t.label = fmt.Sprintf("%s, pods in the file: %d", t.label, len(pods))
			right = right && t.spread(names(pods))
			failed += t.failed
			tallies = append(tallies, t)
		}
	}
	r.table(names(l.web), tallies...)
	r.promise(right, "after a change, exactly the endpoints in the file answer")
	r.promise(failed == 0, "no request fails, also during a change")
	return nil
}

func upgrade(ctx context.Context, r *report, l *lab) error {
	r.heading("Upgrade under load",
		"Two clients ask without pause, and one keeps a connection open. A second Sluice starts with the same flags.",
		"It takes over sockets and connections from the first one, which exits.")
	conn, err := l.Client.Dial(ctx, "tcp", webVIP+":80")
	if err != nil {
		return fmt.Errorf("open a connection to keep: %w", err)
	}
	defer conn.Close()
	kept := bufio.NewReader(conn)
	before, err := askOn(conn, kept)
	if err != nil {
		return err
	}
	loads, stop, err := startLoads(ctx, webVIP, l.Client, l.Node)
	defer stop()
	if err != nil {
		return err
	}
	for _, ld := range loads {
		if err := ld.await(ctx, names(l.web)); err != nil {
			return err
		}
	}
	r.command("node", append([]string{"sluice"}, l.flags...)...)
	l.replaced = l.sluice
	if l.sluice, err = l.Node.Command(ctx, l.program, l.flags...).Launch(); err != nil {
		return err
	}
	err = l.replaced.Wait(ctx)
	r.promise(err == nil, "the first Sluice hands over and exits")
	var tallies []*tally
	failed := 0
	for _, ld := range loads {
		t := ld.begin()
		t.label += ", before and during"
		if err := ld.await(ctx, names(l.web)); err != nil {
			return err
		}
		after := ld.begin()
		after.label += ", after"
		failed += t.failed + after.failed
		tallies = append(tallies, t, after)
	}
	r.table(names(l.web), tallies...)
	r.promise(failed == 0, "no request fails")
	after, err := askOn(conn, kept)
	r.promise(err == nil && after == before, "the kept connection still reaches %s", before)
	return nil
}

// askOn sends a request on a connection that stays open, and returns the answer.
func askOn(conn net.Conn, from *bufio.Reader) (answer string, err error) {
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", fmt.Errorf("set a deadline: %w", err)
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: web\r\n\r\n"); err != nil {
		return "", fmt.Errorf("ask on a kept connection: %w", err)
	}
	reply, err := http.ReadResponse(from, nil)
	if err != nil {
		return "", fmt.Errorf("read an answer on a kept connection: %w", err)
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	return string(body), err
}

func killServers(ctx context.Context, r *report, l *lab) error {
	r.heading("An endpoint refuses",
		"The web server of pod-1 and the DNS server of pod-4 are killed. They stay in the manifests, and refuse.",
		"Sluice fails over when it dials: the client gets another endpoint. A UDP query is sent again.")
	if err := l.servers[1].Close(); err != nil {
		return fmt.Errorf("stop the web server of pod-1: %w", err)
	}
	l.dnsmasqs[1].Stop(syscall.SIGKILL)
	if err := survive(ctx, r, l, "an endpoint that refuses costs no request, and under 1 s", time.Second); err != nil {
		return err
	}
	r.command(l.Client.Name, append([]string{"dig"}, digArgs(dnsVIP, "+notcp")...)...)
	t := dig(ctx, l.Client, dnsVIP, "+notcp", 9)
	r.table(names(l.dns), t)
	r.promise(t.spread([]string{"pod-3", "pod-5"}), "an endpoint that refuses costs no UDP query")
	if err := l.startWeb(ctx, l.web[1]); err != nil {
		return err
	}
	return comeBack(ctx, r, l)
}

func darkenPod(ctx context.Context, r *report, l *lab) error {
	r.heading("An endpoint does not answer",
		"All packets to and from pod-1 are dropped, as when its machine loses power.",
		"Sluice dials another endpoint after 250 ms.")
	if err := l.web[1].Blackhole(true); err != nil {
		return err
	}
	if err := survive(ctx, r, l, "a silent endpoint costs no request, and under 3 s", 3*time.Second); err != nil {
		return err
	}
	if err := l.web[1].Blackhole(false); err != nil {
		return err
	}
	return comeBack(ctx, r, l)
}

// survive asks while pod-1 cannot answer.
func survive(ctx context.Context, r *report, l *lab, promise string, limit time.Duration) error {
	const n = 30
	showCurl(r, l.Client.Name, webVIP, n)
	t, err := curl(ctx, l.Client, webVIP, n)
	if err != nil {
		return err
	}
	r.table(names(l.web), t)
	r.promise(t.spread([]string{"pod-0", "pod-2"}) && t.slowest < limit, "%s", promise)
	return nil
}

// comeBack waits until all web pods answer.
func comeBack(ctx context.Context, r *report, l *lab) error {
	began := time.Now()
	err := testbed.Poll(ctx, 10*time.Second, "all pods to answer", func() (bool, error) {
		t, err := curl(ctx, l.Client, webVIP, 30)
		return err == nil && t.spread(names(l.web)), err
	})
	r.promise(err == nil, "the web Service uses all endpoints again (after %d ms)",
		time.Since(began).Milliseconds())
	return err
}

func empty(ctx context.Context, r *report, l *lab) error {
	r.heading("No endpoints", "The list of endpoints is empty: Sluice refuses clients immediately.")
	if err := l.scaleWeb(nil); err != nil {
		return err
	}
	r.command(l.Client.Name, "curl", "http://"+webVIP+"/")
	var out []byte
	var took time.Duration
	err := testbed.Poll(ctx, 10*time.Second, "a refusal", func() (bool, error) {
		c := l.Client.Command(ctx, "curl", "-sS", "-m", "5", "-H", "Connection: close", "http://"+webVIP+"/")
		began := time.Now()
		var runErr error
		out, runErr = c.CombinedOutput()
		took = time.Since(began)
		var exit *exec.ExitError
		return errors.As(runErr, &exit) && exit.ExitCode() == 7, nil // "failed to connect to host"
	})
	r.line("%s", strings.TrimSpace(string(out)))
	r.promise(err == nil && took < time.Second, "a Service without endpoints refuses immediately")
	if err := l.scaleWeb(l.web); err != nil {
		return err
	}
	return comeBack(ctx, r, l)
}

// shown are the metrics that the demo prints, by the start of their names.
var shown = []string{
	"sluice_services ", "sluice_endpoints ", `sluice_connections_total{protocol="TCP"`,
	`sluice_dials_total{protocol="TCP"`, `sluice_connections_total{protocol="UDP"`,
}

func inspect(ctx context.Context, r *report, l *lab) error {
	r.heading("Metrics and steering",
		"Some metrics, and the map of the kernel that steers traffic to Sluice.",
		"A Service port is an element of this map, not a rule.")
	r.command("node", "curl", testbed.MetricsURL)
	_, body, err := l.Node.Get(ctx, testbed.MetricsURL)
	if err != nil {
		return fmt.Errorf("fetch metrics: %w", err)
	}
	some := false
	for line := range strings.Lines(body) {
		if slices.ContainsFunc(shown, func(name string) bool { return strings.HasPrefix(line, name) }) {
			some = true
			r.line("  %s", strings.TrimSpace(line))
		}
	}
	r.promise(some, "/metrics shows these metrics")
	show := []string{"nft", "list", "map", "ip", "sluice-steering", "steer"}
	r.command("node", show...)
	if _, err := exec.LookPath(show[0]); err != nil {
		r.line("  (nft is not installed: Sluice does not need it)")
		return nil
	}
	out, err := l.Node.Command(ctx, show[0], show[1:]...).Output()
	if err != nil {
		return fmt.Errorf("look at the node: %s: %w", strings.Join(show, " "), err)
	}
	for line := range strings.Lines(string(out)) {
		r.line("  %s", strings.TrimRight(line, "\n"))
	}
	return nil
}

func leave(ctx context.Context, r *report, l *lab) error {
	r.heading("Stop and clean up",
		"On SIGTERM Sluice waits for open connections and stops. Its rules stay for the next start.",
		"sluice --cleanup removes them.")
	code := l.sluice.Stop(syscall.SIGTERM)
	r.promise(code == 0, "Sluice stops with status %d", code)
	r.command("node", "sluice", "--cleanup")
	out, err := l.Node.Command(ctx, l.program, "--cleanup").CombinedOutput()
	r.promise(err == nil, "sluice --cleanup ends with status 0")
	if len(out) > 0 {
		r.line("%s", strings.TrimSpace(string(out)))
	}
	after, err := l.Node.KernelState(ctx)
	if err != nil {
		return err
	}
	diff := testbed.StateDiff(l.before, after)
	r.promise(len(diff) == 0, "rules, sets, addresses, routes and settings of the node are as before")
	for _, line := range diff {
		r.line("%s", line)
	}
	complaints := complaints(l.replaced.Log.String() + l.sluice.Log.String())
	r.promise(len(complaints) == 0, "the log has no error, and no warning about a manifest")
	for _, line := range complaints {
		r.line("%s", line)
	}
	return nil
}

// complaints returns the lines of Sluice's log that should not be there.
func complaints(log string) (lines []string) {
	for line := range strings.Lines(log) {
		for _, bad := range []string{"\tERROR\t", "\tWARN\tmanifest", "panic", "fatal"} {
			if strings.Contains(line, bad) {
				lines = append(lines, strings.TrimSpace(line))
				break
			}
		}
	}
	return lines
}
