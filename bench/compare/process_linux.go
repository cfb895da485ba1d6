package main

import (
	"context"
	"slices"

	"github.com/sluice-lb/sluice/bench/load"
	"github.com/sluice-lb/sluice/bench/report"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// command returns a process that will run on some cores only, or on all for "". taskset(1)
// becomes the program, so that the runtime of that sees the cores from its start.
func command(ctx context.Context, host *testbed.Host, cores, name string, args ...string) *testbed.Cmd {
	if cores == "" {
		return host.Command(ctx, name, args...)
	}
	return host.Command(ctx, "taskset", append([]string{"-c", cores, name}, args...)...)
}

// until polls for what no event reports.
func until(ctx context.Context, what string, is func() bool) error {
	return testbed.Poll(ctx, testbed.Patience, what, func() (bool, error) { return is(), nil })
}

// ask starts a client on the client host and returns when its time to measure begins.
func (l *lab) ask(ctx context.Context, c load.AskConfig) (*load.Client, error) {
	return load.Start(ctx, command(ctx, l.tb.Client, l.loadList(), l.self, load.Args(load.RoleAsk, c)...))
}

// loadList and proxyList return the cores of the present run.
func (l *lab) loadList() string {
	if l.workers > 1 {
		_, load := l.cores.several(l.workers)
		return load
	}
	return l.cores.loadList()
}

// pathList returns the cores of Sluice with some flags: all where it chooses for the kernel, which does its work where
// packets are.
func (l *lab) pathList(flags []string) string {
	if slices.Contains(flags, report.Queue) {
		return cores{load: append(slices.Clone(l.cores.load), l.cores.proxy)}.loadList()
	}
	return l.proxyList()
}

func (l *lab) proxyList() string {
	if l.workers > 1 {
		proxy, _ := l.cores.several(l.workers)
		return proxy
	}
	return l.cores.proxyList()
}
