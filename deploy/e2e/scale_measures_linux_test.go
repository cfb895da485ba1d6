package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	benchload "github.com/sluice-lb/sluice/bench/load"
	"github.com/sluice-lb/sluice/bench/stats"
	"github.com/sluice-lb/sluice/internal/testbed"
)

const (
	askEvery  = time.Millisecond      // from one client that asks for a change to the next
	askAtOnce = 64                    // of them, at the most
	restFor   = 30 * time.Millisecond // after a change, so that no two are one
)

// answered has one client after the other begin until one is answered as is says, and returns when. False: none was.
func (l *lab) answered(addr string, limit time.Duration, is func(name string) bool) (at time.Time, ok bool) {
	ctx, cancel := context.WithTimeout(l.ctx, limit)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	answers := make(chan time.Time, 1)
	places := make(chan struct{}, askAtOnce)
	next := time.NewTicker(askEvery)
	defer next.Stop()
	for {
		select {
		case at := <-answers:
			return at, true
		case <-ctx.Done():
			return at, false
		case <-next.C:
		}
		select {
		case places <- struct{}{}:
		default:
			continue
		}
		clients.Go(func() {
			defer func() { <-places }()
			name, err := l.Client.TryAsk("tcp", addr, soon/4)
			if now := time.Now(); err == nil && is(name) {
				select {
				case answers <- now:
				default: // another client was first
				}
			}
		})
	}
}

// changes replaces one endpoint of Service 0, many times.
func (m *many) changes() []figure {
	m.t.Helper()
	addr := m.addr(manyName(0), 80)
	client := m.admin.DiscoveryV1().EndpointSlices(m.namespace)
	update := func(version int) (pod *testbed.Host) {
		m.t.Helper()
		pod = m.Pods[1+version%2]
		_, err := client.Update(m.ctx, m.slice(0, version, pod), metav1.UpdateOptions{})
		m.check(err)
		return pod
	}
	seen := func(pod *testbed.Host) (time.Time, bool) {
		return m.answered(addr, patience, func(name string) bool { return name == pod.Name })
	}
	version := int(time.Now().Unix()) // no other system has written this
	pod := update(version)
	if _, ok := seen(pod); !ok {
		m.t.Fatal("the Service that changes is not served")
	}
	now, err := client.Get(m.ctx, manyName(0)+sliceSuffix, metav1.GetOptions{})
	m.check(err)
	watch, err := client.Watch(m.ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + now.Name, ResourceVersion: now.ResourceVersion})
	m.check(err)
	defer watch.Stop()
	reported := make(chan time.Time, 1)
	go func() {
		for range watch.ResultChan() {
			reported <- time.Now()
		}
	}()
	var took []float64
	used := m.processorTime(m.sluice.Pid())
	for begin := time.Now(); len(took) < scale.changes && time.Since(begin) < scale.limit; {
		time.Sleep(restFor) // nothing happens in it
		version++
		pod := update(version)
		at, ok := seen(pod)
		if !ok {
			m.t.Fatalf("change %d is not seen", len(took))
		}
		took = append(took, at.Sub(<-reported).Seconds()*1000)
	}
	used = m.processorTime(m.sluice.Pid()) - used
	return []figure{{"change p50 ms", stats.Median(took)}, {"p99 ms", stats.Percentile(took, 99)}, {"changes", float64(len(took))},
		{"CPU a change ms", used.Seconds() * 1000 / float64(len(took))}, {"resident MiB", m.status("VmRSS")}}
}

// burst changes many slices at once, that of the last Service at the end.
func (m *many) burst(last string) []figure {
	m.t.Helper()
	n := min(m.services-1, 1000)
	start, version := time.Now(), int(time.Now().Unix())
	m.inParallel(n, func(i int) error {
		i += m.services - n
		_, err := m.admin.DiscoveryV1().EndpointSlices(m.namespace).Update(m.ctx, m.slice(i, version, m.Pods[2]), metav1.UpdateOptions{})
		return err
	})
	at, ok := m.answered(last, patience, func(name string) bool { return name == m.Pods[2].Name })
	// The next system finds what this one has found.
	_, err := m.admin.DiscoveryV1().EndpointSlices(m.namespace).Update(m.ctx, m.slice(m.services-1, version, m.Pods[1]), metav1.UpdateOptions{})
	m.check(err)
	if !ok {
		m.t.Fatal("the last change of a burst is not seen")
	}
	return []figure{{fmt.Sprintf("burst of %d s", n), at.Sub(start).Seconds()}}
}

// serveLoad starts a process that answers load at the first pod. Neither side remembers connections that have ended:
// the node forgets them between two systems, and has new ones come from ports of those, which TCP refuses for a
// minute if their time stamps are older (tcp_timewait_state_process of Linux).
func (m *many) serveLoad() {
	m.t.Helper()
	for _, host := range []*testbed.Host{m.Pods[0], m.Client} {
		m.check(host.Sysctl("net.ipv4.tcp_max_tw_buckets", "0"))
	}
	ln, err := m.Pods[0].Listen(m.ctx, "tcp4", fmt.Sprint(":", loadPort))
	m.check(err)
	defer ln.Close()
	file, err := ln.(*net.TCPListener).File()
	m.check(err)
	defer file.Close()
	cmd := m.roles(m.Pods[0], benchload.RoleServe, benchload.ServeConfig{Kinds: []string{benchload.Sized}})
	cmd.ExtraFiles = []*os.File{file}
	p, err := cmd.Launch()
	m.check(err)
	m.t.Cleanup(func() { p.Stop(syscall.SIGKILL) })
}

// roles returns a process that is one of the roles of bench/load.
func (m *many) roles(host *testbed.Host, role string, config any) *testbed.Cmd {
	return host.Command(m.ctx, "/proc/self/exe", benchload.Args(role, config)...)
}

// load has clients ask Services all over the range.
func (m *many) load() (all []figure) {
	m.t.Helper()
	warm := scale.load / 4
	var addrs []string
	for i := range m.services - 1 {
		if m.loaded(i) {
			addrs = append(addrs, m.addr(manyName(i), 80))
		}
	}
	for _, k := range []struct {
		kind    string
		clients int
		unit    string
	}{{benchload.Short, 1, ""}, {benchload.Short, 32, "connection"}, {benchload.KeepAlive, 32, "request"}} {
		ctx, cancel := context.WithTimeout(m.ctx, scale.load+patience)
		defer cancel()
		client, err := benchload.Start(ctx, m.roles(m.Client, benchload.RoleAsk, benchload.AskConfig{Kind: k.kind, Number: k.clients,
			Addrs: addrs, Request: 64, Response: 200, Warm: warm, Duration: scale.load}))
		m.check(err)
		defer client.Stop(syscall.SIGKILL)
		before := m.machineTime()
		r, err := client.Result()
		m.check(err)
		cpu := m.machineTime() - before
		if r.Errors > 0 || r.Operations == 0 {
			m.t.Errorf("%s of %d clients: %d answers, %d errors: %s", k.kind, k.clients, r.Operations, r.Errors, r.FirstError)
		}
		if k.clients == 1 {
			all = append(all, figure{"first byte us", r.First50}, figure{"its p99 us", r.First99})
			continue
		}
		perSecond := float64(max(r.Operations, 1)) / r.Seconds
		all = append(all, figure{k.unit + "s/s", perSecond},
			figure{"CPU a " + k.unit + " us", cpu.Seconds() * 1e6 / perSecond / (warm + scale.load).Seconds()})
	}
	return all
}

// machineTime returns the CPU time of all cores since boot, idle time left out. That of the processes would not do: the
// kernel forwards in softirqs, which count for whichever process they interrupt.
func (l *lab) machineTime() (worked time.Duration) {
	l.t.Helper()
	text, err := os.ReadFile("/proc/stat")
	l.check(err)
	// proc_stat(5): "cpu" user nice system idle iowait irq softirq, of all cores since the start.
	for i, field := range strings.Fields(string(text))[1:8] {
		ticks, err := strconv.Atoi(field)
		l.check(err)
		if i != 3 && i != 4 {
			worked += time.Duration(ticks) * 10 * time.Millisecond // USER_HZ is 100 wherever Go runs
		}
	}
	return worked
}

// status returns a line of the program's /proc/PID/status, in MiB.
func (l *lab) status(name string) float64 {
	l.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", l.sluice.Pid()))
	l.check(err)
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
			l.check(err)
			return float64(kib) / 1024
		}
	}
	l.t.Fatalf("no %s in %s", name, text)
	return 0
}

// processorTime returns what a process has used, and its children that have ended.
func (l *lab) processorTime(pid int) (used time.Duration) {
	l.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	l.check(err)
	// proc_pid_stat(5): the name, in parentheses, may have any character; utime is field 14, cstime field 17.
	fields := strings.Fields(string(text[slices.Index(text, ')')+1:]))
	for _, field := range fields[14-3 : 18-3] {
		ticks, err := strconv.Atoi(field)
		l.check(err)
		used += time.Duration(ticks) * 10 * time.Millisecond // USER_HZ is 100 wherever Go runs
	}
	return used
}
