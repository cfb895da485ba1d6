package daemon

import (
	"context"
	"errors"
	"sync/atomic"

	"go.uber.org/zap"

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
func newSource(cfg *config.Config, log *zap.Logger, j *journal.Journal) (source, error) {
	if !cfg.FromAPI() {
		return newManifests(cfg.Source.Manifests, log)
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
	log    *zap.Logger
	last   atomic.Pointer[manifest.Result]
}

// newManifests reads the files for the first time. Any problem is an error: there is
// no last good state to fall back to yet.
func newManifests(paths []string, log *zap.Logger) (*manifests, error) {
	m := &manifests{loader: &manifest.Loader{Paths: paths}, log: log}
	result, _ := m.loader.Load()
	m.last.Store(&result)
	var errs []error
	for _, problem := range result.Problems {
		errs = append(errs, problem)
	}
	for _, warning := range result.Warnings {
		log.Warn("manifest", zap.Error(warning))
	}
	return m, errors.Join(errs...)
}

// Run is the method of source.
func (m *manifests) Run(ctx context.Context, changed func(kube.Objects)) {
	changed(m.last.Load().Objects)
	m.loader.Watch(ctx, func(result manifest.Result) {
		problems, warnings := result.Since(*m.last.Swap(&result))
		for _, problem := range problems {
			m.log.Error("manifest rejected, keeping the last good state of the file", zap.Error(problem))
		}
		for _, warning := range warnings {
			m.log.Warn("manifest", zap.Error(warning))
		}
		m.log.Debug("manifests read", zap.Int("files", result.Files), zap.Int("objects", result.Objects.Len()))
		changed(result.Objects)
	})
}
