package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/conditions"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kube"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kubeapi"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/manifest"
)

// source is where Services come from: files, or an API server (kubeapi.Watcher).
type source interface {
	// Run calls changed with everything there is: first when it is complete, then
	// whenever it is different, until ctx ends. It calls from the goroutine it is
	// called on. The objects must not be changed.
	Run(ctx context.Context, changed func(kube.Objects))
}

// putter says what is wrong with a subject now (reports.put).
type putter = func(subject string, now []conditions.Condition)

// turn is what the goroutine of a source does with what it has read.
type turn struct {
	since atomic.Pointer[time.Time] // nil: the goroutine waits for something to read
}

// begin notes that a turn begins, unless it is a part of one. The caller calls end after it.
func (t *turn) begin() (end func()) {
	now := time.Now()
	if !t.since.CompareAndSwap(nil, &now) {
		return func() {}
	}
	return func() { t.since.Store(nil) }
}

// stuck reports whether a turn takes longer than limit.
func (t *turn) stuck(now time.Time, limit time.Duration) bool {
	since := t.since.Load()
	return since != nil && now.Sub(*since) >= limit
}

// newSource returns the source that cfg asks for. The error is one of cfg: nothing
// has been started.
func newSource(cfg *config.Config, put putter, log *zap.Logger, j *journal.Journal, reading *turn) (source, error) {
	if !cfg.FromAPI() {
		return newManifests(cfg.Source.Manifests, put, log, reading)
	}
	kubeapi.LogTo(log)
	connection, err := kubeapi.RESTConfig(cfg.Document.ClientConnection, cfg.Source.Master)
	if err != nil {
		return nil, err
	}
	return kubeapi.New(kubeapi.Config{Connection: connection, NodeName: cfg.Node.Name,
		ServiceProxyName: cfg.Source.ServiceProxyName,
		SyncPeriod:       cfg.Document.ConfigSyncPeriod.Duration, Log: log,
		Trouble: func(sentence string) {
			if sentence == "" {
				j.Remember(journal.Entry{Reason: journal.APIServerAnswers})
				return
			}
			j.Remember(journal.Entry{Warning: true, Reason: journal.APIServerTrouble, Note: sentence})
		}})
}

// manifests is the source that reads files.
type manifests struct {
	loader *manifest.Loader
	put    putter
	log    *zap.Logger
	turn   *turn
	last   atomic.Pointer[manifest.Result]
}

// newManifests reads the files for the first time. A path that cannot be read is an error; a file that is rejected
// keeps no other from being served.
func newManifests(paths []string, put putter, log *zap.Logger, reading *turn) (*manifests, error) {
	m := &manifests{loader: &manifest.Loader{Paths: paths}, put: put, log: log, turn: reading}
	result, _ := m.loader.Load()
	m.last.Store(&result)
	if !result.Lost {
		return m, nil
	}
	var errs []error
	for _, problem := range result.Problems {
		errs = append(errs, problem)
	}
	return nil, errors.Join(errs...)
}

// Run is the method of source.
func (m *manifests) Run(ctx context.Context, changed func(kube.Objects)) {
	apply := func(result manifest.Result) {
		defer m.turn.begin()()
		m.last.Store(&result)
		m.put("manifests", wrongIn(result))
		m.log.Debug("manifests read", zap.Int("files", result.Files), zap.Int("objects", result.Objects.Len()))
		changed(result.Objects)
	}
	apply(*m.last.Load())
	m.loader.Watch(ctx, apply)
}

// loses says which files that are rejected here are among those of which another process serves the last valid state.
func (m *manifests) loses(applied []string) error {
	var errs []error
	for _, p := range m.last.Load().Problems {
		path, err := filepath.Abs(p.File)
		if err == nil && slices.Contains(applied, path) {
			errs = append(errs, p)
		}
	}
	if errs == nil {
		return nil
	}
	return fmt.Errorf("the running process serves the last valid state of files that are rejected now: mend them or "+
		"remove them: %w", errors.Join(errs...))
}

// wrongIn is what is wrong with files.
func wrongIn(r manifest.Result) (out []conditions.Condition) {
	for _, p := range r.Problems {
		out = append(out, conditions.Condition{Reason: conditions.ManifestRejected, Text: p.Error()})
	}
	for _, w := range r.Warnings {
		reason := conditions.ManifestWarning
		if w.Kind == manifest.Unread {
			reason = conditions.ManifestIgnored
		}
		out = append(out, conditions.Condition{Reason: reason, Text: w.Error()})
	}
	return out
}
