package command

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/lines"
)

// levelOf returns what is logged at a verbosity of the flag -v.
func levelOf(verbosity int) zapcore.Level {
	if verbosity > 0 {
		return zapcore.DebugLevel
	}
	return zapcore.InfoLevel
}

// newLogger makes the log, in the form that the configuration has. Several goroutines may call w.Write at once.
func newLogger(w io.Writer, cfg config.Log, level zap.AtomicLevel) *zap.Logger {
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	enc.EncodeLevel = zapcore.CapitalLevelEncoder
	enc.EncodeDuration = zapcore.StringDurationEncoder
	encoder := zapcore.NewConsoleEncoder(enc)
	if cfg.JSON {
		encoder = zapcore.NewJSONEncoder(enc)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.AddSync(w), level))
}

// openLog opens what the log is written to: a file, standard error, or both. A line that either of them does not take
// in time is lost and counted. The caller calls done after the last line; done waits lines.CloseTimeout for each.
func openLog(stderr io.Writer, cfg config.Log, dropped *atomic.Uint64) (w io.Writer, done func(), err error) {
	var file *lines.Writer
	closeFile := func() {}
	if cfg.File != "" {
		f := &logFile{name: cfg.File, limit: int64(min(cfg.MaxSize, 1<<40)) << 20}
		if err := f.open(); err != nil {
			return nil, nil, fmt.Errorf("--log-file: %w: give a file that Sluice may write", err)
		}
		file = lines.NewWriter(f, dropped)
		closeFile = func() {
			if file.Close() {
				_ = f.Close() // there is nowhere left to report it
			}
		}
		if !cfg.AlsoStderr {
			return file, closeFile, nil
		}
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // else the process ends with the reader of standard error
	to := lines.NewWriter(stderr, dropped)
	done = func() {
		closeFile()
		to.Close()
	}
	if file != nil {
		return io.MultiWriter(file, to), done, nil
	}
	return to, done, nil
}

// logFile is a file that starts anew when it has grown to its limit, as klog's
// --log_file does.
type logFile struct {
	name  string
	limit int64 // bytes; 0 for none

	mu   sync.Mutex
	file *os.File
	size int64
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	l.file, l.size = f, info.Size()
	return nil
}

// Write appends a line, whole.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limit > 0 && l.size > 0 && l.size+int64(len(p)) > l.limit {
		if err := l.file.Truncate(0); err != nil {
			return 0, err
		}
		l.size = 0
	}
	n, err := l.file.Write(p)
	l.size += int64(n)
	return n, err
}

// Close ends the writing.
func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}
