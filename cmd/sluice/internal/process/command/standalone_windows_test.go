package command

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/daemon"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/upgrade"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// standalone is the program on this host, fed from a folder. Its Services have addresses
// of the loopback interface, which a host has without being given them.
type standalone struct {
	t        *testing.T
	dir      string
	health   string
	requests chan svc.ChangeRequest
	states   chan svc.Status
	ended    chan uint32
}

// freePort returns a port that nobody has.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.Check(t, err)
	defer l.Close()
	return netip.MustParseAddrPort(l.Addr().String()).Port()
}

// start runs the program as the service manager would, until it is healthy.
func (s *standalone) start(args ...string) {
	t := s.t
	t.Helper()
	s.health = fmt.Sprintf("127.0.0.1:%d", freePort(t))
	cfg, err := config.Parse(append([]string{"--manifests", s.dir, "--healthz-bind-address", s.health, "--metrics-bind-address", "", "--windows-service"}, args...))
	testbed.Check(t, err)
	if cfg.DataPath.Mode != config.ModeWinUserspace || !cfg.Process.WindowsService {
		t.Fatalf("mode %s, as a service: %v", cfg.DataPath.Mode, cfg.Process.WindowsService)
	}
	ctx, stop := context.WithCancel(context.Background())
	o := daemon.Options{Config: cfg, Version: "test", Log: zaptest.NewLogger(t),
		LogDropped: func() uint64 { return 0 }, Upgrade: new(upgrade.Upgrader), SetVerbosity: func(int) {}}
	program := &service{run: func() error { return daemon.Run(ctx, o) }, stop: stop}
	s.requests, s.states, s.ended = make(chan svc.ChangeRequest), make(chan svc.Status, 100), make(chan uint32, 1)
	go func() {
		_, code := program.Execute(nil, s.requests, s.states)
		s.ended <- code
	}()
	s.eventually("the program is healthy", s.healthy)
}

func (s *standalone) healthy() bool {
	resp, err := http.Get("http://" + s.health + "/healthz")
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func (s *standalone) eventually(what string, is func() bool) {
	s.t.Helper()
	testbed.Eventually(s.t, what, is)
}

// write replaces a manifest at once.
func (s *standalone) write(name string, docs ...string) {
	s.t.Helper()
	if err := testbed.WriteManifest(s.dir, name, docs...); err != nil {
		s.t.Fatal(err)
	}
}

// webManifest is a Service with a TCP port and a UDP port, and its endpoints on hostAddr,
// a pair of ports each.
func webManifest(ip string, nodePort uint16, endpoints ...[2]uint16) string {
	doc := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  clusterIP: %s
  ports:
  - {name: tcp, port: 8080, protocol: TCP, nodePort: %d}
  - {name: udp, port: 8080, protocol: UDP, nodePort: %d}
`, ip, nodePort, nodePort)
	for i, e := range endpoints {
		doc += fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-%d
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
ports:
- {name: tcp, port: %d, protocol: TCP}
- {name: udp, port: %d, protocol: UDP}
endpoints:
- addresses: [%s]
`, i, e[0], e[1], hostAddr())
	}
	return doc
}

// hostAddr returns an IPv4 address of this host at which an endpoint may be: loopback is not.
func hostAddr() string {
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() &&
			!p.Addr().IsLinkLocalUnicast() {
			return p.Addr().String()
		}
	}
	panic("this host has no address but loopback")
}

// backend answers with its name: a TCP client when it has ended its stream, and each datagram.
func backend(t *testing.T, name string) [2]uint16 {
	t.Helper()
	l, err := net.Listen("tcp", hostAddr()+":0")
	testbed.Check(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				said, _ := io.ReadAll(c)
				_, _ = fmt.Fprintf(c, "%s %s", name, said)
			}()
		}
	}()
	u, err := net.ListenPacket("udp", hostAddr()+":0")
	testbed.Check(t, err)
	t.Cleanup(func() { _ = u.Close() })
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := u.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = u.WriteTo(fmt.Appendf(nil, "%s %s", name, buf[:n]), from)
		}
	}()
	return [2]uint16{netip.MustParseAddrPort(l.Addr().String()).Port(), netip.MustParseAddrPort(u.LocalAddr().String()).Port()}
}

// ask asks a Service and returns the answer, or an error.
func ask(network, addr string) (string, error) {
	if network == "udp" {
		return askUDP(addr)
	}
	c, err := net.DialTimeout("tcp", addr, testbed.Patience)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testbed.Patience))
	if _, err := io.WriteString(c, "hello"); err != nil {
		return "", err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

// askUDP wants the answer to come from the address that was asked, but not under wine: there
// a UDP socket on one address is one on all of them (ss shows it), with a filter by interface
// (bind_to_iface in server/sock.c), and answers from any.
func askUDP(addr string) (string, error) {
	c, err := net.ListenPacket("udp4", ":0")
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second)) // asked again if a change came between
	if _, err := c.WriteTo([]byte("hello"), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr))); err != nil {
		return "", err
	}
	buf := make([]byte, 100)
	n, from, err := c.ReadFrom(buf)
	if err != nil {
		return "", err
	}
	if !wine && from.String() != addr {
		return "", fmt.Errorf("asked %s, answered by %s", addr, from)
	}
	return string(buf[:n]), nil
}

// wine says whether this is not Windows itself.
var wine = windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil

// TestStandalone: manifests, TCP and UDP through addresses of the loopback interface and
// node ports, live changes, and a stop.
func TestStandalone(t *testing.T) {
	s := &standalone{t: t, dir: t.TempDir()}
	a, b := backend(t, "a"), backend(t, "b")
	nodePort := freePort(t)
	s.write("web.yaml", webManifest("127.0.0.7", nodePort, a))
	s.start("--drain-timeout", "2s", "--udp-timeout", "50ms", "--nodeport-addresses", "127.0.0.0/8")
	answers := func(addr, want string) {
		t.Helper()
		for _, network := range []string{"tcp", "udp"} {
			if got, err := ask(network, addr); got != want {
				t.Errorf("%s %s: %q, %v; want %q", network, addr, got, err, want)
			}
		}
	}
	answers("127.0.0.7:8080", "a hello")
	answers(fmt.Sprintf("127.0.0.1:%d", nodePort), "a hello")

	becomes := func(addr, want string) {
		t.Helper()
		for _, network := range []string{"tcp", "udp"} {
			s.eventually(network+" "+addr+" answers "+want, func() bool { got, err := ask(network, addr); return err == nil && got == want })
		}
	}
	s.write("web.yaml", webManifest("127.0.0.7", nodePort, b)) // another endpoint
	becomes("127.0.0.7:8080", "b hello")
	s.write("web.yaml", webManifest("127.0.0.8", nodePort, b)) // another address
	becomes("127.0.0.8:8080", "b hello")
	refused := func(addr string) {
		t.Helper()
		s.eventually(addr+" refuses", func() bool {
			c, err := net.DialTimeout("tcp", addr, testbed.Patience)
			if err == nil {
				c.Close()
			}
			return err != nil
		})
	}
	refused("127.0.0.7:8080")
	s.write("web.yaml", webManifest("127.0.0.8", nodePort)) // no endpoint
	refused("127.0.0.8:8080")
	refused(fmt.Sprintf("127.0.0.1:%d", nodePort))
	s.write("web.yaml", webManifest("127.0.0.8", nodePort, a))
	becomes("127.0.0.8:8080", "a hello")

	s.requests <- svc.ChangeRequest{Cmd: svc.Interrogate}
	s.requests <- svc.ChangeRequest{Cmd: svc.Stop}
	select {
	case code := <-s.ended:
		if code != 0 {
			t.Errorf("exit code %d", code)
		}
	case <-time.After(testbed.Patience):
		t.Fatal("the program does not end")
	}
	refused("127.0.0.8:8080")
	var states []svc.State
	for len(s.states) > 0 {
		states = append(states, (<-s.states).State)
	}
	if want := []svc.State{svc.StartPending, svc.Running, svc.Running, svc.StopPending, svc.StopPending}; fmt.Sprint(states) != fmt.Sprint(want) {
		t.Errorf("the service manager was told %v, want %v", states, want)
	}
}

// TestServiceFails: the service manager learns of a start that failed.
func TestServiceFails(t *testing.T) {
	program := &service{run: func() error { return io.ErrUnexpectedEOF }, stop: func() {}}
	states := make(chan svc.Status, 10)
	if specific, code := program.Execute(nil, nil, states); !specific || code == 0 || program.err == nil {
		t.Errorf("Execute = %v, %d, with %v", specific, code, program.err)
	}
}
