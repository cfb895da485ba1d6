package testbed

import (
	"bytes"
	"sync"
)

// Buffer keeps what a program writes, for readers that look at it meanwhile. The zero
// value is empty and keeps everything.
type Buffer struct {
	Limit int // of bytes: only the last ones are kept; 0 means no limit

	mu sync.Mutex
	b  bytes.Buffer
}

// Write appends p. It never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.b.Write(p)
	if over := b.b.Len() - b.Limit; b.Limit > 0 && over > 0 {
		b.b.Next(over)
	}
	return len(p), nil
}

// String returns what was written since the last Reset.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Reset drops what was written.
func (b *Buffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.b.Reset()
}
