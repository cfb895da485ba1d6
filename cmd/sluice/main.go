// Command sluice is a userspace L4 load balancer for Kubernetes Services.
//
// main.go is the command line, serve.go wires the rooms together and takes them
// down again. The rooms are described in ARCHITECTURE.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/kernelmodes/iptables"
	"github.com/sluice-lb/sluice/kernelmodes/ipvs"
	"github.com/sluice-lb/sluice/redirect"
)

// version is set by the linker (see Makefile).
var version = "unknown"

// cleanupTimeout bounds --cleanup, which may have to wait for the xtables lock.
const cleanupTimeout = time.Minute

// gcPercent has the collector begin sooner than by default, which saves a quarter of
// the memory with 10,000 Services (bench/results/scale.md). GOGC goes before it.
const gcPercent = 70

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program; it returns the exit code. What a person must put right
// goes to stderr as one sentence for each mistake.
func run(args []string, stdout, stderr io.Writer) int {
	if code, ok := command(args, stdout, stderr); ok {
		return code
	}
	if len(args) > 0 && args[0] == "explain" {
		return explain(args[1:], stdout, stderr)
	}
	next, err := newSuccession()
	if err != nil {
		fmt.Fprintf(stderr, "sluice: %v\n", err)
		return 1
	}
	fail := func(err error) int {
		next.fail(err)
		fmt.Fprintf(stderr, "sluice: %v\n", err)
		return 1
	}
	cfg, err := config.Parse(args)
	switch {
	case err != nil:
		return fail(err)
	case cfg.Action.Help:
		fmt.Fprint(stdout, config.Usage())
		return 0
	case cfg.Action.Version != "":
		printVersion(stdout, cfg.Action.Version)
		return 0
	case cfg.Action.WriteConfigTo != "":
		if err := cfg.Write(); err != nil {
			return fail(err)
		}
		return 0
	case cfg.Action.Cleanup:
		if err := cleanup(); err != nil {
			return fail(fmt.Errorf("clean up: %w", err))
		}
		return 0
	}
	spareProcessor(cfg.DataPath.Loops)
	w, done, err := openLog(stderr, cfg.Log)
	if err != nil {
		return fail(err)
	}
	level := zap.NewAtomicLevelAt(levelOf(cfg.Log.Verbosity))
	log := newLogger(w, cfg, level)
	defer func() {
		_ = log.Sync() // standard error may not support it
		_ = done()     // nobody is left to tell
	}()
	for _, warning := range cfg.Warnings {
		log.Warn("configuration", zap.String("warning", warning))
	}
	if cfg.Action.InitOnly {
		if cfg.DataPath.Mode == config.ModeWinUserspace {
			log.Info("--init-only: this mode needs nothing set up")
			return 0
		}
		loadConntrack(log)
		if err := tuneConntrack(cfg, log); err != nil {
			return fail(fmt.Errorf("--init-only: %w", err))
		}
		return 0
	}
	if err := setOOMScoreAdj(cfg.Process.OOMScoreAdj); err != nil {
		log.Info("the kernel may end this process early when memory runs out", zap.Error(err))
	}
	if err := runUntilStopped(args, cfg, log, level, next); err != nil {
		if cfg.Log.File != "" { // whoever reads that may see nothing of standard error
			log.Error("ended by an error", zap.Error(err))
		}
		return fail(err)
	}
	return 0
}

// cleanup removes every trace of any mode from this host, unless somebody needs it.
func cleanup() error {
	c, err := newClaim()
	if err != nil {
		return err
	}
	defer c.release()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	return removeTraces(ctx)
}

// removeTraces is cleanup by who has the claim. It goes on after an error, and says
// once what several found.
func removeTraces(ctx context.Context) error {
	var said []string
	for _, remove := range []func(context.Context) error{ipvs.Cleanup, iptables.Cleanup, redirect.Cleanup, redirect.CleanupAddresses} {
		err := remove(ctx)
		if err == nil || errors.Is(err, errors.ErrUnsupported) { // this system has nothing of the kind
			continue
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if !slices.Contains(said, line) {
				said = append(said, line)
			}
		}
	}
	if said == nil {
		return nil
	}
	return errors.New(strings.Join(said, "\n"))
}

// errConfigChanged ends the program so that its supervisor starts it anew, as
// kube-proxy does.
var errConfigChanged = errors.New("the file of --config has changed: start again for it to take effect")

// runUntilStopped serves until a signal, or until the file of --config comes to
// mean something else.
func runUntilStopped(args []string, cfg config.Config, log *zap.Logger, level zap.AtomicLevel, next *succession) error {
	stop := make(chan struct{})
	var once sync.Once
	var changed atomic.Bool
	end := func() { once.Do(func() { close(stop) }) }

	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	go func() { // ends with the process, which is soon after either signal
		s := <-signals
		log.Info("stopping; a second signal ends the program at once", zap.Stringer("signal", s))
		end()
		s = <-signals
		log.Warn("stopped by a second signal; open connections are cut", zap.Stringer("signal", s))
		os.Exit(1)
	}()

	ctx, cancel := context.WithCancel(context.Background())
	var background sync.WaitGroup
	background.Go(func() {
		watchConfig(ctx, args, cfg, log, func() bool {
			if cfg.Process.HandoverSocket != "" && next.upgrade("the changed configuration", func(int) {}) != nil && os.Getpid() != 1 {
				return true // the old one stays in force
			}
			log.Info("stopping: the configuration has changed", zap.String("file", cfg.File))
			changed.Store(true)
			end()
			return false
		})
	})
	run := func() error { return serve(cfg, log, level, stop, next) }
	var err error
	if cfg.Process.WindowsService {
		err = underServiceManager(run, end)
	} else {
		err = run()
	}
	cancel()
	background.Wait()
	if err == nil && changed.Load() {
		return errConfigChanged
	}
	return err
}

// watchConfig calls changed each time that the file of --config has come to mean
// something else, until that returns false or ctx ends.
func watchConfig(ctx context.Context, args []string, last config.Config, log *zap.Logger, changed func() bool) {
	for again := true; again && ctx.Err() == nil; {
		again = false
		watcher := config.Watcher{Args: args, Last: last,
			Changed: func(now config.Config) { last, again = now, changed() },
			Invalid: func(err error) {
				log.Error("the changed configuration is not in force, the last good one stays", zap.Error(err))
			},
			Blind: func(err error) {
				log.Warn("the configuration is not watched, only looked at every 10 s", zap.Error(err))
			}}
		watcher.Run(ctx)
	}
}

// printVersion prints the version, and how the program was built if raw is asked for.
func printVersion(w io.Writer, form string) {
	if form != "raw" {
		fmt.Fprintf(w, "sluice %s\n", version)
		return
	}
	fmt.Fprintf(w, "version.Info{GitVersion:%q, GoVersion:%q, Compiler:%q, Platform:%q}\n",
		version, runtime.Version(), runtime.Compiler, runtime.GOOS+"/"+runtime.GOARCH)
}
