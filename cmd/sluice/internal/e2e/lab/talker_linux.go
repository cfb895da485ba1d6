package lab

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/bench/testbed"
)

// Talker is a connection that was made before, and tells whether it still works.
type Talker struct {
	T *testing.T
	net.Conn
}

// Hold opens one to the Service of ServeEcho, until the test ends.
func (l *Lab) Hold() *Talker {
	l.T.Helper()
	c, err := l.Client.Dial(l.T.Context(), "tcp", WebAddr)
	if err != nil {
		l.T.Fatal(err)
	}
	l.T.Cleanup(func() { _ = c.Close() })
	return &Talker{T: l.T, Conn: c}
}

// Works wants an echo of a size that does not fit anything at once.
func (c *Talker) Works() {
	c.T.Helper()
	_ = c.SetDeadline(time.Now().Add(testbed.Patience))
	want := make([]byte, 1<<20)
	_, _ = io.ReadFull(Stream(rand.Uint64()), want)
	go func() { _, _ = c.Write(want) }()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		c.T.Fatalf("a connection from before does not work: %v", err)
	}
}

// Echoes wants an echo of a few bytes, which needs no pipe.
func (c *Talker) Echoes() {
	c.T.Helper()
	_ = c.SetDeadline(time.Now().Add(testbed.Patience))
	got := make([]byte, 4)
	if _, err := io.WriteString(c, "ping"); err != nil {
		c.T.Fatal(err)
	}
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "ping" {
		c.T.Fatalf("echo %q, %v", got, err)
	}
}

// Insist asks until there is an answer, as clients of UDP do: a thousand at once may
// overrun the queue of a pod's socket, which is not sized for that.
func (c Client) Insist() (string, error) {
	for range 20 {
		if name, err := c.Ask([]byte("?"), time.Second); err != nil || name != "" {
			return name, err
		}
	}
	return "", errors.New("no answer to 20 datagrams")
}

// Stream is an endless pseudo-random stream.
func Stream(seed uint64) io.Reader {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return rand.NewChaCha8(key)
}
