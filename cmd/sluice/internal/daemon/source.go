package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/conditions"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/journal"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/kube"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/kubeapi"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/manifest"
)

// source is where Services come from: files, or an API server (kubeapi.Watcher).
type source interface {
	// Run calls changed with everything there is: first when it is complete, then
	// whenever it is different, until ctx ends. It calls from the goroutine it is
	// called on. The objects must not be changed.
	Run(ctx context.Context, changed func(kube.Objects))
}

// newSource returns the source that cfg asks for. The error is one of cfg: nothing
// has been started.
func newSource(cfg *config.Config, wrong *conditions.Set, log *zap.Logger, j *journal.Journal) (source, error) {
	if !cfg.FromAPI() {
		return newManifests(cfg.Source.Manifests, wrong, log)
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
				j.Remember(journal.Entry{Reason: "APIServerAnswers"})
				return
			}
			j.Remember(journal.Entry{Warning: true, Reason: "APIServerTrouble", Note: sentence})
		}})
}

// manifests is the source that reads files.
type manifests struct {
	loader *manifest.Loader
	wrong  *conditions.Set
	log    *zap.Logger
	last   atomic.Pointer[manifest.Result]
}

// newManifests reads the files for the first time. A path that cannot be read is an error; a file that is rejected
// keeps no other from being served.
func newManifests(paths []string, wrong *conditions.Set, log *zap.Logger) (*manifests, error) {
	m := &manifests{loader: &manifest.Loader{Paths: paths}, wrong: wrong, log: log}
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
		m.last.Store(&result)
		m.wrong.Put("manifests", wrongIn(result))
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
