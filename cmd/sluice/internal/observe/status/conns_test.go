package status

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// dialFrom connects from an address of loopback, each of which is a client of its own. It may be reset at once.
func dialFrom(t *testing.T, from, to string) (net.Conn, error) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: testbed.Patience}
	c, err := d.Dial("tcp", to)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, c.SetDeadline(time.Now().Add(testbed.Patience))
}

// TestSlowClients: clients that never end their requests hold a part of the connections, be they at one address or at
// as many as there may be connections; each other one is answered meanwhile.
func TestSlowClients(t *testing.T) {
	conns := NewConns(0)
	var addr string
	open := func(network, at string) (net.Listener, error) {
		l, err := net.Listen(network, at)
		if err == nil {
			addr = l.Addr().String()
		}
		return l, err
	}
	s, err := Binding{Addr: "127.0.0.1:0", Open: conns.Bound(open),
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}.Serve()
	testbed.Check(t, err)
	defer func() { _ = s.Close() }()
	ask := func(from string) error {
		c, err := dialFrom(t, from, addr)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n"); err != nil {
			return err
		}
		_, err = io.ReadFull(c, make([]byte, len("HTTP/1.0 200")))
		return err
	}

	const strangers = 300
	slow := func(from string) {
		if c, err := dialFrom(t, from, addr); err == nil {
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nX: ") // it may be reset already
		}
	}
	for range strangers {
		slow("127.0.0.2")
	}
	testbed.Eventually(t, "a client has a half of them", func() bool { return conns.Refused() == strangers-128 })
	for i := range strangers {
		slow(fmt.Sprintf("127.0.%d.%d", 1+i/250, 1+i%250))
	}
	testbed.Eventually(t, "all are taken", func() bool { return conns.Refused() >= 2*strangers-256 })
	for _, from := range []string{"127.0.0.1", "127.0.0.2"} {
		if err := ask(from); err != nil {
			t.Errorf("%s is not answered: %v", from, err)
		}
	}
}

// A program with few descriptors has fewer connections for HTTP.
func TestConnsOfFewDescriptors(t *testing.T) {
	for descriptors, want := range map[int64]int64{0: 256, 40: 8, 1024: 16, 17_000: 256} {
		if c := NewConns(descriptors); c.most != want {
			t.Errorf("%d connections beside %d descriptors, want %d", c.most, descriptors, want)
		}
	}
}
