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
	to := sink{log.Named("client-go").Sugar(), zapcore.WarnLevel}
	klog.SetLoggerWithOptions(logr.New(to), klog.ContextualLogger(true))
}

// sink is a logr.LogSink on zap.
type sink struct {
	log *zap.SugaredLogger
	err zapcore.Level // of errors
}

// Init has nothing to prepare.
func (sink) Init(logr.RuntimeInfo) {}

// Enabled reports whether a message of this verbosity would be written. From 5 on
// client-go writes whole requests and answers.
func (s sink) Enabled(verbosity int) bool {
	return verbosity < 5 && s.log.Level() <= zapcore.DebugLevel
}

// Info writes what client-go finds worth knowing.
func (s sink) Info(_ int, msg string, pairs ...any) { s.log.Debugw(msg, whole(pairs)...) }

// Error writes what went wrong in client-go and is reported nowhere else.
func (s sink) Error(err error, msg string, pairs ...any) {
	s.log.With(whole(pairs)...).Logw(s.err, msg, zap.Error(err))
}

// WithValues returns a sink that adds pairs to every message.
func (s sink) WithValues(pairs ...any) logr.LogSink {
	return sink{s.log.With(whole(pairs)...), s.err}
}

// WithName returns a sink of that name.
func (s sink) WithName(name string) logr.LogSink { return sink{s.log.Named(name), s.err} }

// whole leaves out a last name without a value.
func whole(pairs []any) []any { return pairs[:len(pairs)/2*2] }
