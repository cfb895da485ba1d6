package kubeapi

import (
	"github.com/go-logr/logr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
)

// LogTo has client-go, which writes to klog, write to log instead, and everything
// else in the process that uses klog. What it logs of its own work becomes
// debugging, since a Watcher says what an operator needs. It is for the start of the
// program.
func LogTo(log *zap.Logger) {
	klog.SetLoggerWithOptions(logr.New(sink{log.Named("client-go"), zapcore.WarnLevel}), klog.ContextualLogger(true))
}

// sink is a logr.LogSink on zap.
type sink struct {
	log *zap.Logger
	err zapcore.Level // of errors
}

// Init has nothing to prepare.
func (sink) Init(logr.RuntimeInfo) {}

// Enabled reports whether a message of this verbosity would be written. From 5 on
// client-go writes whole requests and answers.
func (s sink) Enabled(verbosity int) bool {
	return verbosity < 5 && s.log.Core().Enabled(zapcore.DebugLevel)
}

// Info writes what client-go finds worth knowing.
func (s sink) Info(_ int, msg string, pairs ...any) { s.log.Debug(msg, zapFields(pairs)...) }

// Error writes what went wrong in client-go and is reported nowhere else.
func (s sink) Error(err error, msg string, pairs ...any) {
	s.log.Log(s.err, msg, append(zapFields(pairs), zap.Error(err))...)
}

// WithValues returns a sink that adds pairs to every message.
func (s sink) WithValues(pairs ...any) logr.LogSink {
	return sink{s.log.With(zapFields(pairs)...), s.err}
}

// WithName returns a sink of that name.
func (s sink) WithName(name string) logr.LogSink { return sink{s.log.Named(name), s.err} }

// zapFields reads pairs of a name and a value, of which the last value may be missing.
func zapFields(pairs []any) []zap.Field {
	var out []zap.Field
	for i := 0; i+1 < len(pairs); i += 2 {
		if name, ok := pairs[i].(string); ok {
			out = append(out, zap.Any(name, pairs[i+1]))
		}
	}
	return out
}
