package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/check"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/cli"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/explain"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/lines"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/daemon"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/supervise"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/upgrade"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/node"
	"github.com/sluice-lb/sluice/redirect"
)

// loadTimeout bounds the rules that --init-only tries.
const loadTimeout = 3 * time.Minute

// others returns the subcommands that read their own flags.
func others() []cli.Command {
	return []cli.Command{
		{Name: "upgrade", Short: "Make the running process hand over to a new one", Run: upgrade.Request},
		{Name: "explain", Short: "Show which endpoint a client gets, and why", Run: explain.Run},
		{Name: "check", Short: "Check a configuration and manifests before a start", Run: check.Run},
		{Name: "wait", Short: "Wait to be stopped", Run: wait, Hidden: true},
		{Name: "man", Short: "Print the manual page", Run: man, Hidden: true},
	}
}

// Main is the program; it returns the exit code. What a person must correct goes to
// stderr as one sentence for each mistake.
func Main(build Build, args []string, stdout, stderr io.Writer) int {
	node.Collect()
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		prefix := "sluice"
		if args[0] != "upgrade" { // which its errors name
			prefix += " " + args[0]
		}
		return exitCode(subcommand(args, stdout, stderr), prefix, stderr)
	}
	up, err := upgrade.New()
	if err == nil {
		if err = run(build, args, stdout, stderr, up); err != nil && up.Fail(err) {
			return 1 // the running process says why
		}
	}
	if ended, ok := errors.AsType[*supervise.Exit](err); ok {
		return ended.Code
	}
	if err != nil {
		lines.Within(func() { exitCode(err, "sluice", stderr) }) // standard error may take no more
		return 1
	}
	return 0
}

// subcommand runs what the first argument names.
func subcommand(args []string, stdout, stderr io.Writer) error {
	root := cli.Root(others(), stdout, stderr)
	if !cli.Has(root, args[0]) {
		return cli.Unknown(root, args[0])
	}
	root.SetArgs(args)
	return root.ExecuteContext(context.Background())
}

// exitCode reports an error to a person, whose terminal must not obey what a Service is called.
func exitCode(err error, prefix string, stderr io.Writer) int {
	if err != nil {
		fmt.Fprintf(stderr, "%s: %s\n", prefix, cli.Lines(err.Error()))
		return 1
	}
	return 0
}

// run does what the flags ask for: something else, or serve.
func run(build Build, args []string, stdout, stderr io.Writer, up *upgrade.Upgrader) error {
	cfg, err := config.Parse(args)
	if err != nil {
		return err
	}
	switch a := cfg.Action; {
	case a.Help:
		fmt.Fprint(stdout, config.Usage())
		return nil
	case a.Version != "":
		build.print(stdout, a.Version)
		return nil
	case a.WriteConfigTo != "":
		return cfg.Write()
	case a.Cleanup:
		if err := daemon.Cleanup(); err != nil {
			return fmt.Errorf("clean up: %w", err)
		}
		return nil
	}
	var dropped atomic.Uint64
	w, done, err := openLog(stderr, cfg.Log, &dropped)
	if err != nil {
		return err
	}
	level := zap.NewAtomicLevelAt(levelOf(cfg.Log.Verbosity))
	log := newLogger(w, cfg.Log, level)
	defer done()
	defer zap.RedirectStdLog(log)() // net/http writes there
	for _, warning := range cfg.Warnings {
		log.Warn("configuration", zap.String("warning", warning))
	}
	if cfg.Action.InitOnly {
		return initHost(&cfg, log)
	}
	if supervise.Needed() {
		return supervise.Run(log)
	}
	node.SpareProcessor(cfg.DataPath.Loops)
	if err := node.SetOOMScoreAdj(int(*cfg.Document.OOMScoreAdj)); err != nil {
		log.Info("the kernel may end this process early when memory runs out", zap.Error(err))
	}
	o := daemon.Options{Config: cfg, Version: build.Version, Commit: build.Commit, Log: log, Upgrade: up,
		LogDropped:   dropped.Load,
		SetVerbosity: func(v int) { level.SetLevel(levelOf(v)) }}
	if !cfg.Process.Yes {
		o.Ask = asker(os.Stdin, stderr)
	}
	err = serve(args, o)
	if errors.Is(err, upgrade.ErrHandedOver) {
		return nil
	}
	if err != nil && cfg.Log.File != "" { // its readers may see nothing of standard error
		log.Error("stopped by an error", zap.Error(err))
	}
	return err
}

// initHost does what needs privileges, for --init-only. A node on which no process has
// written rules yet has no settings of conntrack, so some are tried.
func initHost(cfg *config.Config, log *zap.Logger) error {
	if cfg.DataPath.Mode == config.ModeWinUserspace {
		log.Info("--init-only: this mode needs nothing set up")
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
	defer cancel()
	if err := tryRules(ctx); err != nil {
		log.Warn("rules cannot be written here", zap.Error(err))
	}
	err := node.TuneConntrack(cfg.Kernel.Conntrack, log)
	if errors.Is(err, fs.ErrPermission) { // the node is a container itself, as with kind: its host decides
		log.Warn("conntrack settings not applied", zap.Error(err))
		return nil
	}
	if err != nil {
		return fmt.Errorf("--init-only: %w", err)
	}
	return nil
}

// tryRules tries rules of nf_tables, which need no program, or else of iptables.
func tryRules(ctx context.Context) error {
	err := new(redirect.NFTables).Probe(ctx)
	if err == nil {
		return nil
	}
	if _, other := new(redirect.IPTables).Probe(ctx); other != nil {
		return errors.Join(err, other)
	}
	return nil
}
