package e2e

import (
	"context"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestSamePort: a client that has a connection to one Service is served by another that it
// asks from the same port of its own. Both are steered to one port of the proxy, where only
// the source port that netfilter gives the second one tells them apart.
func TestSamePort(t *testing.T) {
	testbed.VM(t)
	l := lab.New(t, testbed.Config{})
	for _, pod := range l.Pods {
		testbed.Keep(t)(pod.WhoTCP(":8080"))
		testbed.Keep(t)(pod.EchoTCP(":7000"))
	}
	var six []string
	for _, pod := range l.Pods {
		six = append(six, `"`+pod.Addr6.String()+`"`)
	}
	for name, port := range map[string]int{"web": 8080, "echo": 7000} {
		v6 := func(manifest string) string { return strings.Replace(manifest, "IPv4", "IPv6", 1) }
		ip := map[string]string{"web": "80", "echo": "81"}[name]
		l.Write(name+".yaml", testbed.ServiceManifest(name, "10.96.0."+ip+":80", "TCP", ""),
			testbed.SliceManifest(name, 4, port, "TCP", testbed.Addrs(l.Pods...)...),
			strings.Replace(testbed.ServiceManifest(name+"6", "six:80", "TCP", ""), "six", `"fd00:96::`+ip+`"`, 1), v6(testbed.SliceManifest(name+"6", 6, port, "TCP", six...)))
	}
	l.Start()
	for _, c := range []struct{ echo, web string }{{"10.96.0.81:80", "10.96.0.80:80"}, {"[fd00:96::81]:80", "[fd00:96::80]:80"}} {
		for _, from := range []*testbed.Host{l.Client, l.Pods[0], l.Node} {
			for range 20 {
				askFromSamePort(t, from, c.echo, c.web)
			}
		}
	}
}

// askFromSamePort has a connection to one Service, asks another from the same port, and sees
// that the first one works still.
func askFromSamePort(t *testing.T, from *testbed.Host, echo, web string) {
	t.Helper()
	held, err := dialFrom(t.Context(), from, 0, echo)
	testbed.Check(t, err)
	defer held.Close()
	port := held.LocalAddr().(*net.TCPAddr).Port
	c, err := dialFrom(t.Context(), from, port, web)
	if err != nil {
		t.Fatalf("%s has a connection to %s, and asks %s from the same port %d: %v", from.Name, echo, web, port, err)
	}
	defer c.Close()
	if name, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(name), "pod-") {
		t.Errorf("%s asks %s from the same port %d: %q, %v", from.Name, web, port, name, err)
	}
	(&testbed.Talker{T: t, Conn: held}).Echoes()
}

// dialFrom connects from a port, or any if that is 0, which other connections may have too.
func dialFrom(ctx context.Context, from *testbed.Host, port int, to string) (c net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, testbed.Patience)
	defer cancel()
	d := net.Dialer{LocalAddr: &net.TCPAddr{Port: port}, Control: func(_, _ string, c syscall.RawConn) (err error) {
		if err2 := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }); err2 != nil {
			return err2
		}
		return err
	}}
	err = from.Do(func() (err error) {
		c, err = d.DialContext(ctx, "tcp", to)
		return err
	})
	return c, err
}
