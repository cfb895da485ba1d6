// Command sluice is a userspace L4 load balancer for Kubernetes Services.
//
// main.go is the command line, serve.go wires the rooms together and takes them
// down again. The rooms are described in ARCHITECTURE.md.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/redirect"
)

// version is set by the linker (see Makefile).
var version = "unknown"

// cleanupTimeout bounds --cleanup, which may have to wait for the xtables lock.
const cleanupTimeout = time.Minute

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program; it returns the exit code. What a person must put right
// goes to stderr as one sentence for each mistake.
func run(args []string, stdout, stderr io.Writer) int {
	cfg, err := config.Parse(args)
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "sluice: %v\n", err)
		return 1
	case cfg.Help:
		fmt.Fprint(stdout, config.Usage())
		return 0
	case cfg.Version:
		fmt.Fprintf(stdout, "sluice %s\n", version)
		return 0
	case cfg.Cleanup:
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := redirect.Cleanup(ctx); err != nil {
			fmt.Fprintf(stderr, "sluice: clean up: %v\n", err)
			return 1
		}
		return 0
	}
	log := newLogger(stderr, cfg.Verbosity)
	defer func() { _ = log.Sync() }() // standard error may not support it

	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	stop := make(chan struct{})
	go func() { // ends with the process, which is soon after either signal
		s := <-signals
		log.Info("stopping; a second signal ends the program at once", zap.Stringer("signal", s))
		close(stop)
		s = <-signals
		log.Warn("stopped by a second signal; open connections are cut", zap.Stringer("signal", s))
		os.Exit(1)
	}()
	if err := serve(cfg, log, stop); err != nil {
		fmt.Fprintf(stderr, "sluice: %v\n", err)
		return 1
	}
	return 0
}

func newLogger(w io.Writer, verbosity int) *zap.Logger {
	level := zapcore.InfoLevel
	if verbosity > 0 {
		level = zapcore.DebugLevel
	}
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	enc.EncodeLevel = zapcore.CapitalLevelEncoder
	enc.EncodeDuration = zapcore.StringDurationEncoder
	return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(enc), zapcore.Lock(zapcore.AddSync(w)), level))
}
