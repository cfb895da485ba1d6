package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/handover"
)

// Request is the subcommand upgrade: it asks the running process to upgrade itself, and
// waits for the result.
func Request(args []string, stdout io.Writer) error {
	var path, pidFile string
	var timeout time.Duration
	flags := pflag.NewFlagSet("sluice upgrade", pflag.ContinueOnError)
	flags.SetOutput(io.Discard) // the caller prints the error, once
	flags.StringVar(&path, "handover-socket", "", "`PATH` that the running process was given")
	flags.StringVar(&pidFile, "pid-file", "",
		"`PATH` that the running process was given, if it has no --handover-socket")
	flags.DurationVar(&timeout, "timeout", startTimeout+takeTimeout, "longest `DURATION` to wait for the result")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprintf(stdout, "Makes the running Sluice start the program anew and hand everything over to it.\n\n"+
			"Usage:\n  sluice upgrade [flags]\n\n%s", flags.FlagUsages())
		return nil
	case err != nil:
		return fmt.Errorf("read flags: %w (see sluice upgrade --help)", err)
	case path == "" && pidFile == "":
		return errors.New("which process is to be upgraded: give --handover-socket or --pid-file as the running " +
			"process has it")
	case path == "":
		path = pidFile + ".sock"
	}
	ch, err := handover.Dial(path)
	if err != nil {
		return err
	}
	if ch == nil {
		return fmt.Errorf("upgrade: no process listens at %s: is Sluice running, with this --handover-socket or "+
			"--pid-file?", path)
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
