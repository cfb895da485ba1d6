package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/handover"
)

const (
	upgradeCommand = "upgrade"

	// retiredCommand is what a container's process is after it has handed over.
	retiredCommand = "retired"
)

// command runs a word of the command line that is no flag. False: there is none.
func command(args []string, stdout, stderr io.Writer) (code int, ok bool) {
	if len(args) == 0 {
		return 0, false
	}
	var err error
	switch args[0] {
	case upgradeCommand:
		err = requestUpgrade(args[1:], stdout)
	case retiredCommand:
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
		<-stop
	default:
		return 0, false
	}
	if err != nil {
		fmt.Fprintf(stderr, "sluice: %v\n", err)
		return 1, true
	}
	return 0, true
}

// requestUpgrade has the running process upgrade itself and waits for the result.
func requestUpgrade(args []string, stdout io.Writer) error {
	var path, pidFile string
	var timeout time.Duration
	flags := pflag.NewFlagSet("sluice "+upgradeCommand, pflag.ContinueOnError)
	flags.SetOutput(io.Discard) // the caller prints the error, once
	flags.StringVar(&path, "handover-socket", "", "`PATH` that the running process was given")
	flags.StringVar(&pidFile, "pid-file", "", "`PATH` that the running process was given, if it has no --handover-socket")
	flags.DurationVar(&timeout, "timeout", upgradeTimeout+takeTimeout, "longest `DURATION` to wait for the result")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprintf(stdout, "Have the running Sluice start the program anew and hand everything over to it.\n\nUsage:\n  sluice %s [flags]\n\n%s", upgradeCommand, flags.FlagUsages())
		return nil
	case err != nil:
		return fmt.Errorf("read flags: %w (see sluice %s --help)", err, upgradeCommand)
	case path == "" && pidFile == "":
		return fmt.Errorf("which process is to be upgraded: give --handover-socket or --pid-file as the running process has it")
	case path == "":
		path = pidFile + ".sock"
	}
	ch, err := handover.Dial(path)
	if err != nil {
		return err
	}
	if ch == nil {
		return fmt.Errorf("upgrade: nobody listens at %s: is Sluice running, with this --handover-socket or --pid-file?", path)
	}
	defer ch.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	pid, err := ch.RequestUpgrade(ctx)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("upgrade: no result within %v; it may still come", timeout)
	case err != nil:
		return fmt.Errorf("upgrade: %w", err)
	}
	fmt.Fprintf(stdout, "upgraded; process %d serves\n", pid)
	return nil
}
