package accesslog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/lines"
	"github.com/sluice-lb/sluice/internal/look"
)

const (
	// chunk is how many bytes are written at once, and fewer when no line waits.
	chunk = 64 << 10

	// reopenEvery is how often it is looked whether the file was renamed or removed.
	reopenEvery = time.Second

	// gather is how long a line may wait for others, which are written with it: to wake a goroutine for each costs a
	// busy loop a third of its connections.
	gather = 10 * time.Millisecond
)

// entry is what has ended, and when.
type entry struct {
	look.Ended
	at time.Time
}

// queue has what one loop has ended.
type queue struct {
	once sync.Once
	lines.Queue[entry]
}

// Log writes lines. Make it by Open.
type Log struct {
	format func(b []byte, e *entry) []byte
	failed func(error)
	queues []queue
	ended  chan struct{}
	broken chan os.Signal // nothing is received from it
	wg     sync.WaitGroup

	written, dropped atomic.Uint64

	mu      sync.Mutex // guards the following, and each write
	path    string
	to      io.Writer
	file    *os.File // nil: to is not ours
	looked  time.Time
	behind  error // why the file is not opened anew that was renamed or removed: lines go on to that
	torn    bool  // the last line of the file is a part of one
	failing bool  // the last write has failed, which is reported once
}

// Open returns a log that is written to a file, or to standard output, of so many loops, which may add at the same
// time; what the kernel forwards is added as if by another one. failed gets errors of writing, the first of
// those that follow each other.
func Open(path, format string, loops int, stdout io.Writer, failed func(error)) (*Log, error) {
	l := &Log{format: appendJSON, failed: failed, queues: make([]queue, loops+1), ended: make(chan struct{}),
		path: path, to: stdout, broken: make(chan os.Signal, 1)}
	if format == config.LogTCPLog {
		l.format = appendTCPLog
	}
	if path == config.Stdout {
		signal.Notify(l.broken, syscall.SIGPIPE) // else the process ends with who reads from it (os/signal)
		return l, nil
	}
	return l, l.open()
}

func (l *Log) open() (err error) {
	// A pipe that has no reader is an error, and not waited for.
	file, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK, 0o640)
	if err != nil {
		return fmt.Errorf("open access log: %w", err)
	}
	l.file, l.to, l.looked, l.torn = file, file, time.Now(), false
	return nil
}

// Add logs what has ended on e's loop, or in the kernel. It does not wait.
func (l *Log) Add(e *look.Ended) {
	q, at := &l.queues[e.Loop], time.Now()
	if e.Kernel != nil {
		q = &l.queues[len(l.queues)-1]
		if !e.Kernel.At.IsZero() {
			at = e.Kernel.At
		}
	}
	q.once.Do(func() {
		q.Start()
		l.wg.Go(func() { l.serve(q) })
	})
	if !q.Put(entry{*e, at}) {
		l.dropped.Add(1)
	}
}

// Stats returns how many lines were written, and how many lost.
func (l *Log) Stats() (written, dropped uint64) { return l.written.Load(), l.dropped.Load() }

// serve writes the lines of a loop.
func (l *Log) serve(q *queue) {
	b := make([]byte, 0, chunk+4<<10)
	n := uint64(0)
	flush := func() {
		l.write(b, n)
		b, n = b[:0], 0
	}
	q.Serve(l.ended, gather, func(e *entry) {
		b = append(l.format(b, e), '\n')
		if n++; len(b) >= chunk {
			flush()
		}
	}, flush)
}

// write writes whole lines. What cannot be written is lost, and counted.
func (l *Log) write(b []byte, n uint64) {
	if n == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.follow()
	if l.torn {
		b = slices.Concat([]byte{'\n'}, b)
	}
	took, err := l.to.Write(b)
	whole := uint64(bytes.Count(b[:took], []byte{'\n'}))
	if took > 0 {
		if l.torn {
			whole-- // the end of the line that was torn
		}
		l.torn = b[took-1] != '\n'
	}
	l.written.Add(whole)
	l.dropped.Add(n - whole)
	if err != nil {
		err = fmt.Errorf("write access log: %w", err)
	}
	if err = errors.Join(l.behind, err); err != nil && !l.failing {
		l.failed(err)
	}
	l.failing = err != nil
}

// follow opens the file anew if it was renamed or removed, as logrotate does.
func (l *Log) follow() {
	if l.file == nil || time.Since(l.looked) < reopenEvery {
		return
	}
	l.looked = time.Now()
	is, err := os.Stat(l.path)
	have, haveErr := l.file.Stat()
	if err == nil && haveErr == nil && os.SameFile(is, have) {
		l.behind = nil
		return
	}
	old := l.file
	if l.behind = l.open(); l.behind == nil {
		l.behind = old.Close() // which may say that what was written is lost
	}
}

// Close writes what waits. It is called when all loops have ended, or nothing that ends is logged by them any more.
func (l *Log) Close() error {
	close(l.ended)
	if !lines.Within(l.wg.Wait) {
		return errors.New("close access log: what it is written to takes no more") // it ends with the process
	}
	signal.Stop(l.broken)
	if l.file != nil {
		return l.file.Close()
	}
	return nil
}
