package events

import (
	"sync/atomic"

	"go.uber.org/zap"
)

// Log writes events to the log alone, where there is no API server. Its rate is not
// limited here: events start or end something, and do not repeat.
type Log struct {
	Log *zap.Logger

	recorded atomic.Uint64
}

// Record writes a line.
func (l *Log) Record(e Event) {
	l.recorded.Add(1)
	write(l.Log, e)
}

// Stats counts the lines. None is dropped.
func (l *Log) Stats() (recorded, dropped uint64) { return l.recorded.Load(), 0 }

// Close does nothing: all has been written.
func (l *Log) Close() {}

// write writes an event, as a warning if an operator should look.
func write(log *zap.Logger, e Event) {
	fields := []zap.Field{zap.String("reason", e.Reason)}
	if e.Service != "" {
		fields = append(fields, zap.String("service", e.Namespace+"/"+e.Service))
	}
	if e.Note != "" {
		fields = append(fields, zap.String("note", e.Note))
	}
	if e.Warning {
		log.Warn("event", fields...)
		return
	}
	log.Info("event", fields...)
}
