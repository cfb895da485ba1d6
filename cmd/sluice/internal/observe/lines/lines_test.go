package lines

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestWriter: all lines are written, in order, until Close returns.
func TestWriter(t *testing.T) {
	var to bytes.Buffer
	var dropped atomic.Uint64
	w := NewWriter(&to, &dropped)
	var want strings.Builder
	line := make([]byte, 0, 10)
	for i := range Queued {
		line = fmt.Appendf(line[:0], "%d\n", i) // the caller uses it again, as zap does
		want.Write(line)
		_, _ = w.Write(line)
	}
	if !w.Close() || to.String() != want.String() || dropped.Load() > 0 {
		t.Errorf("%d bytes of %d are written, %d lines dropped", to.Len(), want.Len(), dropped.Load())
	}
}

// TestWriterStuck: no caller waits for a pipe without a reader. Lines beyond the queue are counted, be they many or
// long, and the rest is written once there is a reader.
func TestWriterStuck(t *testing.T) {
	for _, c := range []struct{ lines, length, least int }{
		{3 * Queued, 200, 100}, {20, 1 << 17, 1}, {2, 2 * maxWaiting, 0}} {
		r, pipe, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		var dropped atomic.Uint64
		w := NewWriter(pipe, &dropped)
		line := []byte(strings.Repeat("x", c.length-1) + "\n")
		for range c.lines {
			_, _ = w.Write(line)
		}
		if n := int(dropped.Load()); n < c.least || n == c.lines {
			t.Errorf("%d of %d lines with %d bytes are dropped", n, c.lines, c.length)
		}
		read := make(chan int)
		start := time.Now()
		if w.Close() {
			t.Error("Close reports that all is written")
		}
		if took := time.Since(start); took < CloseTimeout {
			t.Errorf("Close waits for %v", took)
		}
		go func() {
			n := 0
			for s := bufio.NewReader(r); ; n++ {
				if text, err := s.ReadString('\n'); err != nil || len(text) != c.length {
					break
				}
			}
			read <- n
		}()
		w.serving.Wait()
		_ = pipe.Close()
		if n := <-read; n+int(dropped.Load()) != c.lines {
			t.Errorf("%d lines are read and %d dropped of %d", n, dropped.Load(), c.lines)
		}
		_ = r.Close()
	}
}

// TestWriterFails: lines that cannot be written are counted.
func TestWriterFails(t *testing.T) {
	r, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	var dropped atomic.Uint64
	w := NewWriter(pipe, &dropped)
	for range 3 {
		_, _ = w.Write([]byte("line\n"))
	}
	if !w.Close() || dropped.Load() != 3 {
		t.Errorf("%d lines are dropped", dropped.Load())
	}
	_ = pipe.Close()
}
