package accesslog

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/internal/look"
)

const (
	// queued is how many lines of a loop wait at the most.
	queued = 1024

	// chunk is how many bytes are written at once, and at the latest when no line waits.
	chunk = 64 << 10

	// reopenEvery is how often it is looked whether the file was renamed or removed.
	reopenEvery = time.Second

	// closeTimeout is how long Close waits for what takes no more.
	closeTimeout = time.Second
)

// Stdout is the path that stands for standard output.
const Stdout = "-"

// The formats.
const (
	JSON    = "json"
	TCPLog  = "tcplog"
	Formats = JSON + " or " + TCPLog
)

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
	failing bool // the last write has failed, which is reported once
}

// queue has what a loop has ended.
type queue struct {
	once sync.Once
	c    chan entry
}

// entry is what has ended, and when.
type entry struct {
	look.Ended
	at time.Time
}

// Open returns a log that is written to a file, or to standard output. failed gets errors of writing, the first of
// those that follow each other.
func Open(path, format string, loops int, stdout io.Writer, failed func(error)) (*Log, error) {
	l := &Log{format: appendJSON, failed: failed, queues: make([]queue, loops), ended: make(chan struct{}), path: path,
		to: stdout, broken: make(chan os.Signal, 1)}
	if format == TCPLog {
		l.format = appendTCPLog
	}
	if path == Stdout {
		signal.Notify(l.broken, syscall.SIGPIPE) // else the process ends with who reads from it (os/signal)
		return l, nil
	}
	return l, l.open()
}

func (l *Log) open() (err error) {
	l.file, err = os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return fmt.Errorf("open access log: %w", err)
	}
	l.to, l.looked = l.file, time.Now()
	return nil
}

// Add logs what has ended on e's loop. It does not wait.
func (l *Log) Add(e *look.Ended) {
	q := &l.queues[e.Loop]
	q.once.Do(func() {
		q.c = make(chan entry, queued)
		l.wg.Go(func() { l.serve(q.c) })
	})
	select {
	case q.c <- entry{*e, time.Now()}:
	default:
		l.dropped.Add(1)
	}
}

// Stats returns how many lines were written, and how many lost.
func (l *Log) Stats() (written, dropped uint64) { return l.written.Load(), l.dropped.Load() }

// serve writes the lines of a loop.
func (l *Log) serve(c <-chan entry) {
	b := make([]byte, 0, chunk+4<<10)
	lines := uint64(0)
	flush := func() {
		l.write(b, lines)
		b, lines = b[:0], 0
	}
	add := func(e *entry) {
		b = append(l.format(b, e), '\n')
		if lines++; len(b) >= chunk {
			flush()
		}
	}
	for {
		select {
		case e := <-c:
			add(&e)
			continue
		default:
		}
		if lines > 0 {
			flush()
		}
		select {
		case e := <-c:
			add(&e)
		case <-l.ended:
			for len(c) > 0 { // the loops have ended
				e := <-c
				add(&e)
			}
			flush()
			return
		}
	}
}

// write writes whole lines. What cannot be written is lost, and counted.
func (l *Log) write(b []byte, lines uint64) {
	if lines == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.follow()
	if err == nil {
		_, err = l.to.Write(b)
	}
	if err == nil {
		l.written.Add(lines)
	} else if l.dropped.Add(lines); !l.failing {
		l.failed(fmt.Errorf("write access log: %w", err))
	}
	l.failing = err != nil
}

// follow opens the file anew if it was renamed or removed, as logrotate does.
func (l *Log) follow() error {
	if l.file == nil || time.Since(l.looked) < reopenEvery {
		return nil
	}
	l.looked = time.Now()
	is, err := os.Stat(l.path)
	have, haveErr := l.file.Stat()
	if err == nil && haveErr == nil && os.SameFile(is, have) {
		return nil
	}
	old := l.file
	if err := l.open(); err != nil {
		l.file = old
		return err
	}
	return old.Close()
}

// Close writes what waits. It is called when all loops have ended.
func (l *Log) Close() error {
	close(l.ended)
	signal.Stop(l.broken)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.wg.Wait()
	}()
	select {
	case <-done:
	case <-time.After(closeTimeout):
		return errors.New("close access log: what it is written to takes no more") // it ends with the process
	}
	if l.file != nil {
		return l.file.Close()
	}
	return nil
}
