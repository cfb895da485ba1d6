package testbed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"
)

// Talker is a connection that was made before, and tells whether it still works.
type Talker struct {
	T testing.TB
	net.Conn
}

// Works wants an echo of a size that does not fit anything at once.
func (c *Talker) Works() {
	c.T.Helper()
	_ = c.SetDeadline(time.Now().Add(Patience))
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
	_ = c.SetDeadline(time.Now().Add(Patience))
	got := make([]byte, 4)
	if _, err := io.WriteString(c, "ping"); err != nil {
		c.T.Fatal(err)
	}
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "ping" {
		c.T.Fatalf("echo %q, %v", got, err)
	}
}

// Stream is an endless pseudo-random stream.
func Stream(seed uint64) io.Reader {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return rand.NewChaCha8(key)
}

// UDPClient is a UDP socket that is connected to a Service, so that only answers
// from the address it asked reach it.
type UDPClient struct{ net.Conn }

// NewUDPClient opens such a socket, until the test ends.
func NewUDPClient(t testing.TB, from *Host, addr string) UDPClient {
	t.Helper()
	c, err := from.Dial(t.Context(), "udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return UDPClient{c}
}

// Ask sends a datagram and returns the answer, or "" if there is none within d.
func (c UDPClient) Ask(msg []byte, d time.Duration) (string, error) {
	if err := c.SetDeadline(time.Now().Add(d)); err != nil {
		return "", err
	}
	if _, err := c.Write(msg); err != nil {
		return "", err
	}
	buf := make([]byte, 65535)
	n, err := c.Read(buf)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return "", nil
	}
	return string(buf[:n]), err
}

// Insist asks until there is an answer, as clients of UDP do: a thousand at once may
// overrun the queue of a pod's socket, which is not sized for that.
func (c UDPClient) Insist() (string, error) {
	for range 20 {
		if name, err := c.Ask([]byte("?"), time.Second); err != nil || name != "" {
			return name, err
		}
	}
	return "", errors.New("no answer to 20 datagrams")
}
