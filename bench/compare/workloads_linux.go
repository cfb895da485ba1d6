package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/bench/load"
	"github.com/sluice-lb/sluice/bench/report"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// figure is one metric of one run.
type figure struct {
	metric, unit string
	value        float64
}

// workload is one thing to do with every system.
type workload struct {
	name, about string
	protocol    string   // empty for TCP
	alone       bool     // Sluice only, which the workload starts itself
	asked       bool     // only if a pattern names it
	balances    bool     // it is for systems with several algorithms
	quick       bool     // part of a quick run
	workers     int      // of each proxy; 0 means 1
	connections int      // that are open, if they are the matter
	needs       []string // programs
	run         work
}

// work does a workload for about a time, with a system that runs.
type work func(context.Context, *lab, *running, time.Duration) ([]figure, error)

// warm is how long load is made before it is measured.
const warm = 300 * time.Millisecond

func workloads() []workload {
	var all []workload
	for _, n := range []int{1, 64, 1000} {
		all = append(all, workload{
			name: fmt.Sprintf("rr-%d", n), about: fmt.Sprintf("TCP, requests and answers of about 200 B on %d "+
				"connections that stay (wrk)", n),
			quick: n > 1, needs: []string{"wrk"}, run: keepAlive(n),
		})
	}
	all = append(append(all, turnsWorkloads()...),
		workload{name: "short", quick: true, about: "TCP, 32 clients with a connection for each request, which the " +
			"server ends", run: asking(sizedService, shortLoad, "connection")},
		workload{name: "mixed", about: "TCP, requests and answers of 64 B to 1 MiB on 32 connections that stay",
			run: asking(sizedService,
				load.AskConfig{Kind: load.KeepAlive, Number: 32, Response: 1, Mixed: true}, "request")},
	)
	for _, n := range []int{1, 8} {
		for _, way := range []struct {
			suffix, about string
			flags         []string
		}{{"", "from client to server", nil}, {"-down", "from server to client", []string{"-R"}}, {"-both",
			"both ways together", []string{"--bidir"}}} {
			all = append(all, workload{
				name: fmt.Sprintf("bulk-%d%s", n, way.suffix), about: fmt.Sprintf("TCP, %d streams %s (iperf3)", n,
					way.about),
				quick: n == 1 && way.suffix == "", needs: []string{"iperf3"}, run: bulk(n, way.flags),
			})
		}
	}
	all = append(all, workload{name: "idle", quick: true, about: "memory of the proxy's process for each of 5,000 " +
		"idle TCP connections, or as many as its descriptors allow", run: idle})
	for _, n := range []int{1, 64, 1000} {
		all = append(all, workload{name: fmt.Sprintf("udp-%d", n), quick: n > 1, protocol: udp,
			about: fmt.Sprintf("UDP, 64 B there and back on %d flows", n), run: asking(echoService,
				load.AskConfig{Kind: load.Datagrams, Number: n, Request: 64}, "round trip")})
	}
	for _, c := range []struct{ window, flows int }{{8, 16}, {64, 4}} {
		all = append(all, workload{name: fmt.Sprintf("udp-bulk-%d", c.window), quick: c.window == 8, protocol: udp,
			about: fmt.Sprintf("UDP, 1,200 B there and back on %d flows, %d datagrams at a time", c.flows, c.window),
			run: asking(echoService, load.AskConfig{Kind: load.Datagrams, Number: c.flows, Window: c.window,
				Request: 1200}, "round trip")})
	}
	gso := load.AskConfig{Kind: load.Datagrams, Number: 16, Window: 32, GSO: true, Request: 1200}
	all = append(all, workload{name: "udp-gso", protocol: udp,
		about: "UDP, 1,200 B there and back on 16 flows, 32 datagrams by one send of the client (UDP_SEGMENT)",
		run:   asking(echoService, gso, "round trip")})
	gso.GRO = true
	all = append(all, workload{name: "udp-gro", protocol: udp,
		about: "the same, and servers and clients receive and answer batches (UDP_GRO)",
		run:   asking(groService, gso, "round trip")})
	all = append(all, workload{name: "dns", protocol: udp, needs: []string{"dnsmasq"},
		about: "UDP, 16 clients ask a DNS server (dnsmasq), from a new port each time",
		run: asking(dnsService, load.AskConfig{Kind: load.DNS, Number: 16, Fresh: true, Name: dnsName},
			"question")})
	return slices.Concat(all, connectionWorkloads(), openWorkloads(), workerWorkloads(), stormWorkloads(),
		balanceWorkloads(), serviceWorkloads(), sctpWorkloads(), offloadWorkloads())
}

// shortLoad are clients with a connection for each request.
var shortLoad = load.AskConfig{Kind: load.Short, Number: 32, Request: 64, Response: 200}

// programs returns what a workload runs.
func (w workload) programs() []string {
	if w.protocol == sctp && !testbed.HasSCTP() {
		return []string{tsctp}
	}
	return w.needs
}

// costs returns the processor time of the proxy per operation. What has no process
// has only that of the core.
func costs(r *running, u usage, operations, scale float64, unit string) []figure {
	var out []figure
	if r.process != nil {
		out = append(out, figure{report.CPU, unit, u.process.Seconds() * scale / operations})
	}
	return append(out, figure{report.Core, unit, u.coreTime().Seconds() * scale / operations},
		figure{report.All, unit, u.machineTime().Seconds() * scale / operations})
}

const micro = 1e6

// asking measures a client of our own.
func asking(name string, c load.AskConfig, unit string) work {
	return func(ctx context.Context, l *lab, r *running, d time.Duration) ([]figure, error) {
		if name == dnsService {
			if err := l.startDNS(ctx); err != nil {
				return nil, err
			}
		}
		c.Addrs, c.Warm, c.Duration = r.addrs(l.service(name)), warm, d
		res, u, err := l.measure(ctx, r, c)
		if err != nil {
			return nil, err
		}
		if res.Operations == 0 {
			return nil, fmt.Errorf("no %s succeeded: %d errors (%s), %d lost", unit, res.Errors, res.FirstError,
				res.Lost)
		}
		ops := float64(res.Operations)
		out := costs(r, u, ops, micro, "us/"+unit)
		out = append(out, figure{report.Rate, unit + "s/s", ops / res.Seconds})
		if c.Mixed {
			out = append(out, figure{"bytes", "MB/s", float64(res.Bytes) / res.Seconds / 1e6})
		}
		out = append(out, latencies(res.P50, res.P99, res.P999)...)
		out = append(out, figure{report.Errors, "", float64(res.Errors)})
		if c.Kind == load.Datagrams || c.Kind == load.DNS {
			out = append(out, figure{report.Lost, "", float64(res.Lost)}, figure{"loss", "ppm",
				float64(res.Lost) / (ops + float64(res.Lost)) * 1e6})
		}
		return out, nil
	}
}

func latencies(p50, p99, p999 float64) []figure {
	return []figure{{report.P50, "us", p50}, {report.P99, "us", p99}, {report.P999, "us", p999}}
}

// measure runs a client and returns what it saw and what the proxy used meanwhile.
func (l *lab) measure(ctx context.Context, r *running, c load.AskConfig) (res load.Result, u usage, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.Warm+c.Duration+testbed.Patience)
	defer cancel()
	k, err := l.ask(ctx, c)
	if err != nil {
		return res, u, err
	}
	defer k.Stop(syscall.SIGKILL)
	before, err := measureUsage(r.pid(), l.cores.proxy)
	if err != nil {
		return res, u, err
	}
	if res, err = k.Result(); err != nil {
		return res, u, err
	}
	l.remarkErrors(res)
	after, err := measureUsage(r.pid(), l.cores.proxy)
	return res, after.minus(before), errors.Join(err, r.alive())
}

// remarkErrors says what the first error of a client was.
func (l *lab) remarkErrors(res load.Result) {
	if res.Errors > 0 {
		l.remark("%d errors, the first: %s", res.Errors, res.FirstError)
	}
}

// alive returns an error if the proxy has ended meanwhile.
func (r *running) alive() error {
	if r.process != nil && r.process.Ended() {
		return fmt.Errorf("%s has ended: %s", r.name, r.process.Log.String())
	}
	return nil
}

// tool runs a load tool on the client host for the whole of its life.
func (l *lab) tool(ctx context.Context, r *running, d time.Duration, name string, args ...string) (out string,
	u usage, err error) {
	ctx, cancel := context.WithTimeout(ctx, d+testbed.Patience)
	defer cancel()
	var b strings.Builder
	cmd := command(ctx, l.tb.Client, l.cores.loadList(), name, args...)
	cmd.Stdout = &b
	before, err := measureUsage(r.pid(), l.cores.proxy)
	if err != nil {
		return "", u, err
	}
	p, err := cmd.Launch() // ctx kills it
	if err == nil {
		err = p.Wait(context.Background()) // iperf3 writes its error as JSON, too
	}
	after, usageErr := measureUsage(r.pid(), l.cores.proxy)
	return b.String(), after.minus(before), errors.Join(err, usageErr, r.alive())
}

// wrkScript has wrk print what its summary leaves out, on one line.
const wrkScript = `done = function(s, l, r)
  io.write(string.format("RESULT requests=%d duration_us=%d bytes=%d errors=%d p50=%f p99=%f p999=%f\n",
    s.requests, s.duration, s.bytes,
    s.errors.connect + s.errors.read + s.errors.write + s.errors.status + s.errors.timeout,
    l:percentile(50), l:percentile(99), l:percentile(99.9)))
end
`

func keepAlive(connections int) work {
	return func(ctx context.Context, l *lab, r *running, d time.Duration) ([]figure, error) {
		script := filepath.Join(l.dir, "result.lua")
		if err := os.WriteFile(script, []byte(wrkScript), 0o644); err != nil {
			return nil, err
		}
		threads := min(connections, max(1, len(l.cores.load)/2), 4)
		out, u, err := l.tool(ctx, r, d, "wrk", "-t", strconv.Itoa(threads), "-c", strconv.Itoa(connections),
			"-d", strconv.Itoa(int(math.Ceil(d.Seconds())))+"s", "-s", script,
			"http://"+r.addrs(l.service(webService))[0]+"/")
		if err != nil {
			return nil, err
		}
		w, err := parseWrk(out)
		if err != nil {
			return nil, err
		}
		if w.requests == 0 {
			return nil, fmt.Errorf("no request succeeded: %.0f errors", w.errors)
		}
		fs := append(costs(r, u, w.requests, micro, "us/request"), figure{report.Rate, "requests/s",
			w.requests / w.seconds})
		fs = append(fs, latencies(w.p50, w.p99, w.p999)...)
		return append(fs, figure{report.Errors, "", w.errors}), nil
	}
}

func bulk(streams int, flags []string) work {
	return func(ctx context.Context, l *lab, r *running, d time.Duration) ([]figure, error) {
		s := l.service(bulkService)
		server, err := command(ctx, l.tb.Pods[0], l.cores.loadList(), "iperf3", "-s", "-1", "--forceflush",
			"-p", strconv.Itoa(s.target)).Launch()
		if err != nil {
			return nil, err
		}
		defer server.Stop(syscall.SIGKILL)
		listening := func() bool { return strings.Contains(server.Log.String(), "listening") }
		if err := until(ctx, "iperf3", listening); err != nil {
			return nil, err
		}
		ip, port, _ := strings.Cut(r.addrs(s)[0], ":")
		seconds := int(math.Ceil((d + 2*bulkMargin).Seconds()))
		args := append([]string{"-c", ip, "-p", port, "-P", strconv.Itoa(streams), "-t", strconv.Itoa(seconds), "-J"},
			flags...)
		type window struct {
			figures []figure
			err     error
		}
		ctx, cancel := context.WithCancel(ctx)
		middle := make(chan window, 1)
		go func() { // ends with the window, or with ctx
			fs, err := l.moved(ctx, r, d)
			middle <- window{fs, err}
		}()
		out, _, err := l.tool(ctx, r, d+2*bulkMargin, "iperf3", args...)
		res, parseErr := parseIperf([]byte(out))
		if err = errors.Join(parseErr, err); err != nil {
			cancel()
		}
		w := <-middle
		cancel()
		if err = errors.Join(err, w.err); err != nil {
			return nil, err
		}
		return append(w.figures, figure{"retransmits", "", res.retransmits}), nil
	}
}

// bulkMargin is how long streams run before and after they are measured. iperf3 counts
// what has arrived in its time, and the proxy works on what is queued for longer.
const bulkMargin = 500 * time.Millisecond

// moved measures what the node receives from either side, and the processor time,
// from a margin after now on.
func (l *lab) moved(ctx context.Context, r *running, d time.Duration) ([]figure, error) {
	var at [2]struct {
		usage
		bytes uint64
		time  time.Time
	}
	for i, wait := range []time.Duration{bulkMargin, d} {
		select {
		case <-time.After(wait): // what is measured is time that passes
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		var err error
		if at[i].usage, err = measureUsage(r.pid(), l.cores.proxy); err != nil {
			return nil, err
		}
		var text []byte
		err = l.tb.Node.Do(func() error {
			text, err = os.ReadFile("/proc/thread-self/net/dev")
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read the node's counters: %w", err)
		}
		for _, dev := range []string{"eth0", "cni0"} {
			n, err := parseReceived(string(text), dev)
			if err != nil {
				return nil, err
			}
			at[i].bytes += n
		}
		at[i].time = time.Now()
	}
	bytes := float64(at[1].bytes - at[0].bytes)
	if bytes == 0 {
		return nil, errors.New("nothing was moved")
	}
	fs := costs(r, at[1].minus(at[0].usage), bytes, 1e9, "s/GB")
	return append(fs, figure{report.Rate, "Gbit/s", bytes * 8 / at[1].time.Sub(at[0].time).Seconds() / 1e9}), nil
}

// idle measures memory, and what connections cost that do nothing. The kernel's
// memory for sockets is the same for all, and not counted.
func idle(ctx context.Context, l *lab, r *running, d time.Duration) ([]figure, error) {
	if r.process == nil {
		return nil, nil
	}
	// What is allocated once, by the first connections, is not for each of them.
	c := load.AskConfig{Kind: load.Short, Addrs: r.addrs(l.service(sizedService)), Number: 32, Request: 64,
		Response: 200, Duration: 200 * time.Millisecond}
	if _, _, err := l.measure(ctx, r, c); err != nil {
		return nil, err
	}
	before, err := testbed.ResidentBytes(r.pid())
	if err != nil {
		return nil, err
	}
	c.Kind, c.Number = load.Idle, min(5000, l.connections())
	if r.name == relayName {
		c.Number = min(c.Number, (l.descriptors-1000)/6) // io.Copy holds two pipes besides the sockets
	}
	ctx, cancel := context.WithTimeout(ctx, d+2*testbed.Patience)
	defer cancel()
	k, err := l.ask(ctx, c)
	if err != nil {
		return nil, err
	}
	defer k.Stop(syscall.SIGKILL)
	from, err := measureUsage(r.pid(), l.cores.proxy)
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(d): // doing nothing is what is measured
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	to, err := measureUsage(r.pid(), l.cores.proxy)
	if err != nil {
		return nil, err
	}
	after, err := testbed.ResidentBytes(r.pid())
	if err != nil {
		return nil, err
	}
	k.End()
	res, err := k.Result()
	if err != nil {
		return nil, err
	}
	l.remarkErrors(res)
	n := float64(res.Established)
	return []figure{
		{report.Memory, "B/connection", float64(after-before) / n},
		{"resident", "MiB", float64(after) / (1 << 20)},
		{"idle cpu", "ms/s", to.minus(from).process.Seconds() * 1000 / d.Seconds()},
		{"connections", "", n},
		{report.Errors, "", float64(res.Errors + uint64(res.Finished))},
	}, nil
}
