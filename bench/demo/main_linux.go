package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// timeout is for the whole demo: each wait in it is bounded by this one.
const timeout = 55 * time.Second

func main() {
	sluice := flag.String("sluice", "bin/sluice", "the program to show")
	examples := flag.String("manifests", "deploy/examples", "the folder of manifests to show it with")
	flag.Parse()
	os.Exit(show(*sluice, *examples))
}

// show runs the demo and returns the exit status.
func show(sluice, examples string) int {
	r := &report{out: os.Stdout}
	if err := testbed.Reexec(); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return 2
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, r, sluice, examples); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return 2
	}
	if !r.summary() {
		return 1
	}
	return 0
}

// run shows everything. Its error means that the demo cannot go on; promises that
// do not hold are in the report.
func run(ctx context.Context, r *report, sluice, examples string) (err error) {
	if err := checkPrograms(sluice); err != nil {
		return err
	}
	l, err := newLab(ctx, sluice, examples)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			l.printLog(os.Stderr)
		}
		err = errors.Join(err, l.close())
	}()
	introduce(r, l)
	for _, step := range []func(context.Context, *report, *lab) error{
		start, balanceWeb, balanceDNS, stick, scale, upgrade, killServers, darkenPod, empty, inspect, leave,
	} {
		if err := step(ctx, r, l); err != nil {
			return err
		}
	}
	return nil
}

// checkPrograms names all that is missing at once.
func checkPrograms(sluice string) error {
	var errs []error
	if _, err := os.Stat(sluice); err != nil {
		errs = append(errs, fmt.Errorf("find sluice (build it with make build): %w", err))
	}
	for _, name := range []string{"curl", "dig", "dnsmasq", "ip", "sysctl"} {
		if _, err := exec.LookPath(name); err != nil {
			errs = append(errs, fmt.Errorf("find a program that the demo needs: %w", err))
		}
	}
	return errors.Join(errs...)
}
