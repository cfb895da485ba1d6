package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/bench/testbed"
)

const patience = time.Minute

func main() {
	if err := testbed.Reexec(); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(2)
	}
	program := flag.String("sluice", "bin/sluice", "`PATH` of the program to measure")
	rounds := flag.Int("rounds", 5, "`NUMBER` of changes and of sets of connections that are measured at each size")
	flag.Parse()
	path, err := filepath.Abs(*program)
	if err == nil {
		err = run(path, *rounds)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// figures are what is measured at one size.
type figures struct {
	protocol string
	services int
	ready    time.Duration   // from the start of the process to healthy
	rules    int             // lines of iptables-save and ip6tables-save
	resident int64           // bytes, after the changes
	change   []time.Duration // from the write of a file to the first client that notices
	connect  []time.Duration // from connect to the first byte
}

func run(program string, rounds int) error {
	tb, err := testbed.New(testbed.Config{})
	if err != nil {
		return err
	}
	defer tb.Close()
	for _, pod := range tb.Pods {
		tcp, err := pod.WhoTCP(":8080")
		if err != nil {
			return err
		}
		defer tcp.Close()
		udp, err := pod.WhoUDP(pod.Addr4.String() + ":8080")
		if err != nil {
			return err
		}
		defer udp.Close()
	}
	fmt.Printf("%-9s %9s %10s %6s %9s %12s %12s %14s\n", "protocol", "Services", "ready ms", "rules", "RSS MiB",
		"change ms", "(longest)", "first byte us")
	var all []figures
	for _, size := range []struct {
		protocol string
		services int
	}{{"TCP", 10}, {"TCP", 1000}, {"TCP", 10000}, {"UDP", 10}, {"UDP", 100}, {"UDP", 1000}} {
		f, err := measure(tb, program, size.protocol, size.services, rounds)
		if err != nil {
			return fmt.Errorf("measure %d %s Services: %w", size.services, size.protocol, err)
		}
		fmt.Printf("%-9s %9d %10.0f %6d %9.1f %12.1f %12.1f %14.0f\n", f.protocol, f.services, ms(f.ready), f.rules,
			float64(f.resident)/(1<<20), ms(median(f.change)), ms(slices.Max(f.change)), ms(median(f.connect))*1000)
		all = append(all, f)
	}
	return judge(all)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

// judge compares with the limits that the project has set itself.
func judge(all []figures) error {
	var errs []error
	small, large := all[0], all[2]
	ratio := float64(median(large.connect)) / float64(median(small.connect))
	fmt.Printf("\nfirst byte at %d Services is %.2f of that at %d\n", large.services, ratio, small.services)
	if large.rules != small.rules {
		errs = append(errs, fmt.Errorf("%d TCP Services have %d rules, %d have %d: the number must not grow", large.services, large.rules, small.services, small.rules))
	}
	if large.ready > 2*time.Second {
		errs = append(errs, fmt.Errorf("%d TCP Services are ready after %v, the limit is 2 s", large.services, large.ready))
	}
	if large.resident > 250<<20 {
		errs = append(errs, fmt.Errorf("%d TCP Services take %d MiB, the limit is 250", large.services, large.resident>>20))
	}
	if median(large.change) > 50*time.Millisecond {
		errs = append(errs, fmt.Errorf("a change among %d TCP Services takes %v, the limit is 50 ms", large.services, median(large.change)))
	}
	if ratio > 1.1 {
		errs = append(errs, fmt.Errorf("the first byte takes %.2f times as long at %d Services, the limit is 1.1", ratio, large.services))
	}
	return errors.Join(errs...)
}

// clusterIP returns the address of Service i.
func clusterIP(i int) string { return fmt.Sprintf("10.97.%d.%d", i/250, 1+i%250) }

// manifest describes Service i and its ten endpoints: the pods, and others that do not
// exist, none of which is ready, so that every connection is answered.
func manifest(tb *testbed.Testbed, protocol string, i int, pods ...*testbed.Host) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Service\nmetadata:\n  name: s%d\nspec:\n  clusterIP: %s\n  ports:\n  - port: 80\n    protocol: %s\n---\n", i, clusterIP(i), protocol)
	fmt.Fprintf(&b, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: s%d-1\n  labels:\n    kubernetes.io/service-name: s%d\naddressType: IPv4\nports:\n- port: 8080\n  protocol: %s\nendpoints:\n", i, i, protocol)
	for _, pod := range pods {
		fmt.Fprintf(&b, "- addresses: [%s]\n", pod.Addr4)
	}
	for k := range 10 - len(pods) {
		fmt.Fprintf(&b, "- addresses: [10.245.%d.%d]\n  conditions: {ready: false}\n", i%250, k+1)
	}
	return b.String()
}

// write replaces a file at once.
func write(dir, name, content string) error {
	tmp := filepath.Join(dir, "."+name)
	if err := os.WriteFile(tmp, []byte(content), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, name))
}

func measure(tb *testbed.Testbed, program, protocol string, services, rounds int) (f figures, err error) {
	f = figures{protocol: protocol, services: services}
	dir, err := os.MkdirTemp("", "sluice-scale-")
	if err != nil {
		return f, err
	}
	defer os.RemoveAll(dir)
	// One file for the bulk, and one for the Service that changes.
	var bulk bytes.Buffer
	for i := 1; i < services; i++ {
		bulk.WriteString("---\n" + manifest(tb, protocol, i, tb.Pods...))
	}
	if err := errors.Join(write(dir, "bulk.yaml", bulk.String()), write(dir, "one.yaml", manifest(tb, protocol, 0, tb.Pods[0]))); err != nil {
		return f, err
	}
	var log bytes.Buffer
	cmd := tb.Node.Command(context.Background(), program, "--manifests", dir)
	cmd.Stderr = &log
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return f, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() {
		err = errors.Join(err, cmd.Process.Signal(syscall.SIGTERM), <-ended)
		out, e := tb.Node.Command(context.Background(), program, "--cleanup").CombinedOutput()
		if err = errors.Join(err, e); err != nil {
			err = fmt.Errorf("%w\n%s%s", err, log.String(), out)
		}
	}()
	if err := until(func() bool { return healthy(tb) }); err != nil {
		return f, fmt.Errorf("wait for health: %w", err)
	}
	f.ready = time.Since(start)
	for _, save := range []string{"iptables-save", "ip6tables-save"} {
		out, err := tb.Node.Command(context.Background(), save).Output()
		if err != nil {
			return f, err
		}
		f.rules += bytes.Count(out, []byte("\n-A "))
	}
	for i := range rounds {
		took, err := change(tb, dir, protocol, i)
		if err != nil {
			return f, fmt.Errorf("change %d: %w", i, err)
		}
		f.change = append(f.change, took...)
	}
	for range 40 * rounds {
		took, _, err := ask(tb.Client, protocol, clusterIP(services/2), time.Second)
		if err != nil {
			return f, fmt.Errorf("connect: %w", err)
		}
		f.connect = append(f.connect, took)
	}
	f.resident, err = testbed.ResidentBytes(cmd.Process.Pid)
	return f, err
}

// change measures three: Service 0 is changed, removed and added again.
func change(tb *testbed.Testbed, dir, protocol string, round int) (took []time.Duration, err error) {
	pod := tb.Pods[1+round%2]
	steps := []struct {
		content string
		seen    func(name string, err error) bool
	}{
		{manifest(tb, protocol, 0, pod), func(name string, err error) bool { return err == nil && name == pod.Name }},
		{"", func(_ string, err error) bool { return err != nil }},
		{manifest(tb, protocol, 0, tb.Pods[0]), func(name string, err error) bool { return err == nil && name == tb.Pods[0].Name }},
	}
	for _, step := range steps {
		start := time.Now()
		if err := write(dir, "one.yaml", step.content); err != nil {
			return nil, err
		}
		var noticed time.Time // when the first of the questions was asked that are answered anew
		again := 0
		if err := until(func() bool {
			asked := time.Now()
			_, name, err := ask(tb.Client, protocol, clusterIP(0), 5*time.Millisecond)
			if !step.seen(name, err) {
				again = 0
				return false
			}
			if again++; again == 1 {
				noticed = asked
			}
			return again == 3 // one may have been slow, and have looked like silence
		}); err != nil {
			return nil, err
		}
		took = append(took, noticed.Sub(start))
	}
	return took, nil
}

// ask returns how long the first byte took and who sent it. What takes longer than
// patience is taken for silence.
func ask(from *testbed.Host, protocol, ip string, patience time.Duration) (time.Duration, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	start := time.Now()
	c, err := from.Dial(ctx, strings.ToLower(protocol), net.JoinHostPort(ip, "80"))
	if err != nil {
		return 0, "", err
	}
	defer c.Close()
	if err := c.SetDeadline(start.Add(patience)); err != nil {
		return 0, "", err
	}
	if protocol == "UDP" {
		if _, err := c.Write([]byte("?")); err != nil {
			return 0, "", err
		}
	}
	buf := make([]byte, 64)
	n, err := c.Read(buf)
	return time.Since(start), strings.TrimSpace(string(buf[:n])), err
}

func healthy(tb *testbed.Testbed) bool {
	client := http.Client{Timeout: patience, Transport: &http.Transport{DialContext: tb.Node.Dial, DisableKeepAlives: true}}
	resp, err := client.Get("http://127.0.0.1:10256/healthz")
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode == http.StatusOK
}

// until waits for what no event tells.
func until(is func() bool) error {
	for deadline := time.Now().Add(patience); !is(); {
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v", patience)
		}
		time.Sleep(time.Millisecond) // a pause between two looks
	}
	return nil
}
