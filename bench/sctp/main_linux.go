package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/bench/stats"
	"github.com/sluice-lb/sluice/bench/testbed"
)

var (
	sluice   = flag.String("sluice", "bin/sluice", "the `PROGRAM` to measure")
	messages = flag.Int("messages", 20000, "`NUMBER` of messages of each run")
	rounds   = flag.Int("rounds", 5, "`NUMBER` of runs of each system and size")
	vm       = flag.String("vm", "", "the `PROGRAM` of bench/vm, to measure in its machine too; empty: not to")
	out      = flag.String("out", "", "`FILE` for the page that says it all; empty: only a table for this kernel is shown")
)

// sizes of messages, in bytes: one that shares a packet with others, one that nearly
// fills one, and one of several packets.
var sizes = []int{100, 1200, 8000}

const (
	port    = 3868
	vip     = "10.96.0.38"
	timeout = 5 * time.Minute // of one run

	// tries is how often a run is begun: a server that is a program does not tell when
	// it listens, and refuses until then.
	tries = 3
)

func main() {
	flag.Parse()
	err := testbed.Reexec()
	if err == nil {
		err = run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sctp:", err)
		os.Exit(1)
	}
}

// lab is a client, the node and one pod.
type lab struct {
	*testbed.Testbed
	ends   ends
	server netip.AddrPort
}

// system is one way from the client to the pod. start returns how to end it, and the
// process that forwards, 0 if it is the kernel.
type system struct {
	name  string
	asks  func(l *lab) netip.AddrPort
	start func(ctx context.Context, l *lab) (stop func() error, pid int, err error)
}

func service(*lab) netip.AddrPort { return netip.MustParseAddrPort(fmt.Sprintf("%s:%d", vip, port)) }

var systems = []system{
	{"route", func(l *lab) netip.AddrPort { return l.server }, func(context.Context, *lab) (func() error, int, error) {
		return func() error { return nil }, 0, nil
	}},
	{"iptables", service, startIPTables},
	{"ipvs", service, startIPVS},
	{"sluice", service, startSluice},
}

func run() error {
	if *out == "" {
		return measureAll(os.Stdout)
	}
	var b bytes.Buffer
	if err := page(io.MultiWriter(&b, os.Stdout)); err != nil {
		return err
	}
	return os.WriteFile(*out, b.Bytes(), 0o644)
}

// measureAll measures every system with every size, and writes a table.
func measureAll(w io.Writer) error {
	l := &lab{ends: newEnds()}
	var err error
	if l.Testbed, err = testbed.New(testbed.Config{Pods: 1}); err != nil {
		return err
	}
	defer l.Close()
	l.server = netip.AddrPortFrom(l.Pods[0].Addr4, port)
	fmt.Fprintf(w, "Linux %s, ends by %s, Sluice by its %s engine; %d messages a run, %d rounds:\n\n", release(), l.ends.name, l.ends.engine, *messages, *rounds)
	fmt.Fprint(w, "| bytes | system | machine | beyond the route | Sluice's process | MB/s |\n|---|---|---|---|---|---|\n")
	for _, size := range sizes {
		figures := make(map[string][]figure)
		absent := make(map[string]error)
		for range *rounds {
			for _, s := range systems {
				if absent[s.name] != nil {
					continue
				}
				f, err := l.measure(s, size)
				if err != nil {
					absent[s.name] = err
					continue
				}
				figures[s.name] = append(figures[s.name], f)
			}
		}
		for _, s := range systems {
			if err := absent[s.name]; err != nil {
				why, _, _ := strings.Cut(err.Error(), "\n")
				fmt.Fprintf(w, "| %d | %s | absent: %s | | | |\n", size, s.name, why)
				continue
			}
			row(w, s, size, figures)
		}
	}
	return nil
}

// row writes the medians of one system and size.
func row(w io.Writer, s system, size int, figures map[string][]figure) {
	median := func(name string, get func(figure) float64) float64 {
		var all []float64
		for _, f := range figures[name] {
			all = append(all, get(f))
		}
		return stats.Median(all)
	}
	n := float64(*messages)
	machine := func(f figure) float64 { return float64(f.machine.Microseconds()) / n }
	process := "-"
	if own := median(s.name, func(f figure) float64 { return float64(f.process.Microseconds()) / n }); own > 0 {
		process = fmt.Sprintf("%.2f", own)
	}
	fmt.Fprintf(w, "| %d | %s | %.2f | %.2f | %s | %.1f |\n", size, s.name, median(s.name, machine), median(s.name, machine)-median("route", machine),
		process, median(s.name, func(f figure) float64 { return n * float64(size) / f.took.Seconds() / 1e6 }))
}

// figure is what one run took.
type figure struct{ machine, process, took time.Duration }

func (l *lab) measure(s system, size int) (f figure, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	stop, pid, err := s.start(ctx, l)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	done, err := l.ends.serve(ctx, l.Pods[0], l.server, size)
	if err != nil {
		return f, err
	}
	defer done()
	for range tries {
		machine, process, start := machineTime(), processTime(pid), time.Now()
		if err = l.ends.send(ctx, l.Client, s.asks(l), size, *messages); err == nil {
			return figure{machineTime() - machine, processTime(pid) - process, time.Since(start)}, nil
		}
	}
	return f, fmt.Errorf("send by %s: %w", s.name, err)
}

// machineTime returns how long all processors together were not idle (proc_stat(5)).
func machineTime() time.Duration {
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(content), "\n")
	busy := 0
	for i, word := range strings.Fields(line)[1:] {
		n, _ := strconv.Atoi(word)
		if i != 3 && i != 4 && i < 8 { // idle, waiting, and guests, which are counted already
			busy += n
		}
	}
	return time.Duration(busy) * tick
}

// tick is the unit of /proc: USER_HZ is 100 everywhere.
const tick = 10 * time.Millisecond

// processTime returns the processor time of a process, 0 for none.
func processTime(pid int) time.Duration {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(content), ") ")
	words := strings.Fields(rest)
	if len(words) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(words[11])
	system, _ := strconv.Atoi(words[12])
	return time.Duration(user+system) * tick
}

func (l *lab) onNode(ctx context.Context, name string, args ...string) error {
	if out, err := l.Node.Command(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

func startIPTables(ctx context.Context, l *lab) (func() error, int, error) {
	rules := [][]string{
		{"PREROUTING", "-d", vip, "-p", "sctp", "--dport", fmt.Sprint(port), "-j", "DNAT", "--to-destination", l.server.String()},
		{"POSTROUTING", "-d", l.server.Addr().String(), "-p", "sctp", "-j", "MASQUERADE"},
	}
	all := func(op string) (err error) {
		for _, r := range rules {
			err = errors.Join(err, l.onNode(context.WithoutCancel(ctx), "iptables", append([]string{"-t", "nat", op}, r...)...))
		}
		return err
	}
	return func() error { return all("-D") }, 0, all("-A")
}

func startIPVS(ctx context.Context, l *lab) (func() error, int, error) {
	to := service(l).String()
	for _, command := range [][]string{
		{"ipvsadm", "-A", "--sctp-service", to, "-s", "rr"},
		{"ipvsadm", "-a", "--sctp-service", to, "-r", l.server.String(), "-m"},
		{"ip", "addr", "replace", vip + "/32", "dev", "lo"},
	} {
		if err := l.onNode(ctx, command[0], command[1:]...); err != nil {
			if _, missing := os.Stat("/proc/net/ip_vs"); missing != nil {
				err = errors.New("this kernel has no ip_vs")
			}
			return nil, 0, err
		}
	}
	return func() error {
		return errors.Join(l.onNode(context.Background(), "ipvsadm", "-C"), l.onNode(context.Background(), "ip", "addr", "del", vip+"/32", "dev", "lo"))
	}, 0, nil
}

const manifest = `apiVersion: v1
kind: Service
metadata:
  name: sctp
spec:
  clusterIP: %s
  ports:
  - port: %d
    protocol: SCTP
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: sctp-1
  labels:
    kubernetes.io/service-name: sctp
addressType: IPv4
ports:
- port: %d
  protocol: SCTP
endpoints:
- addresses: [%s]
`

func startSluice(ctx context.Context, l *lab) (func() error, int, error) {
	dir, err := os.MkdirTemp("", "sluice-sctp")
	if err != nil {
		return nil, 0, err
	}
	text := fmt.Sprintf(manifest, vip, port, port, l.server.Addr())
	if err := os.WriteFile(filepath.Join(dir, "sctp.yaml"), []byte(text), 0o644); err != nil {
		return nil, 0, err
	}
	cmd := l.Node.Command(ctx, *sluice, "--manifests", dir, "--healthz-bind-address", "127.0.0.1:10256", "--metrics-bind-address", "")
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	stop := func() error {
		_ = cmd.Process.Signal(syscall.SIGKILL) // its rules are removed below
		_ = cmd.Wait()                          // killed
		return errors.Join(l.onNode(context.Background(), *sluice, "--cleanup"), os.RemoveAll(dir))
	}
	for {
		if code, _, _ := l.Node.Get(ctx, "http://127.0.0.1:10256/healthz"); code == http.StatusOK {
			return stop, cmd.Process.Pid, nil
		}
		if ctx.Err() != nil {
			return nil, 0, errors.Join(ctx.Err(), stop())
		}
		time.Sleep(10 * time.Millisecond) // a pause between two looks
	}
}
