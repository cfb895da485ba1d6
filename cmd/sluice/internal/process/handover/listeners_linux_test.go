package handover

import (
	"net"
	"syscall"
	"testing"
)

// TestListenersAtAnyPort: each listener that leaves its port to the kernel has one of its own, and the next process
// takes each of them over.
func TestListenersAtAnyPort(t *testing.T) {
	const any = "127.0.0.1:0"
	var old, heir Listeners
	heir.Pause()
	var ports []string
	var taken []net.Listener
	for range 2 {
		l, err := old.Listen("tcp", any)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().String())
		next, err := heir.Listen("tcp", any)
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close()
		taken = append(taken, next)
	}
	if ports[0] == ports[1] {
		t.Errorf("two listeners at %s", ports[0])
	}
	if _, err := old.Listen("tcp", ports[0]); err == nil {
		t.Errorf("a third one at %s", ports[0])
	}
	sockets := old.list()
	for i := range sockets {
		fd, err := syscall.Dup(sockets[i].FD)
		if err != nil {
			t.Fatal(err)
		}
		sockets[i].FD = fd
	}
	if err := heir.offer(sockets); err != nil {
		t.Fatal(err)
	}
	heir.Resume()
	for i, l := range taken {
		if got := l.Addr().String(); got != ports[i] {
			t.Errorf("listener %d is at %s after a hand-over, was at %s", i, got, ports[i])
		}
	}
}
