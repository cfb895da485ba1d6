package notify

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestManagerReadsNothing: messages to a manager that is stopped are given up, and the log says so.
func TestManagerReadsNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	t.Setenv(SocketVar, path)
	core, lines := observer.New(zap.InfoLevel)
	log := zap.New(core)
	sent := 0
	for began := time.Now(); lines.Len() == 0; sent++ {
		if sent > 1<<20 || time.Since(began) > 20*time.Second {
			t.Fatalf("%d messages wait for a manager that reads nothing", sent)
		}
		Stopping(log, "draining")
	}
	if sent < 2 {
		t.Errorf("the first message has failed: %+v", lines.All())
	}
	b := make([]byte, 1024)
	if n, err := l.Read(b); err != nil || !strings.Contains(string(b[:n]), "STATUS=draining") {
		t.Errorf("read %q, %v", b[:n], err)
	}
}
