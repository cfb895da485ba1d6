package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

const (
	haproxyConfig = `
defaults
  timeout connect 10s
  timeout client 60s
  timeout server 60s
frontend web
  mode http
  bind :8080 accept-proxy
  bind :::8080 v6only accept-proxy
  http-request return status 200 content-type text/plain lf-string "haproxy %[src] %[src_port] %[dst] %[dst_port] %[fc_pp_unique_id]\n"
frontend greeting
  mode tcp
  bind :8081 accept-proxy
  default_backend greeter
backend greeter
  mode tcp
  server greeter 127.0.0.1:9000
`
	nginxConfig = `
daemon off;
master_process off;
pid %[1]s/nginx.pid;
error_log stderr crit;
events {}
http {
  access_log off;
  client_body_temp_path %[1]s;
  proxy_temp_path %[1]s;
  fastcgi_temp_path %[1]s;
  uwsgi_temp_path %[1]s;
  scgi_temp_path %[1]s;
  server {
    listen 8080 proxy_protocol;
    listen [::]:8080 ipv6only=on proxy_protocol;
    return 200 "nginx $proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_addr $proxy_protocol_server_port\n";
  }
}
`
	// unboundConfig logs who asks, as the header says. Access is by the address that a query comes from.
	unboundConfig = `
server:
  interface: %s@5353
  proxy-protocol-port: 5353
  access-control: 0.0.0.0/0 allow
  username: ""
  chroot: ""
  directory: "%s"
  pidfile: ""
  use-syslog: no
  do-daemonize: no
  log-queries: yes
  module-config: "iterator"
  local-zone: "test." static
  local-data: "who.test. A 203.0.113.9"
remote-control:
  control-enable: no
`
)

// run has a program with a configuration run on a host until the test ends.
func run(t *testing.T, h *testbed.Host, config, program string, args ...string) *testbed.Process {
	t.Helper()
	file := filepath.Join(t.TempDir(), program+".conf")
	testbed.Check(t, os.WriteFile(file, []byte(config), 0o644))
	p, err := h.Command(context.Background(), program, append(args, file)...).Launch()
	testbed.Check(t, err)
	t.Cleanup(func() {
		p.Stop(os.Kill)
		if t.Failed() {
			t.Logf("%s: %s", program, p.Log.String())
		}
	})
	return p
}

// announcedService is a Service whose endpoints hear of clients by PROXY headers.
func announcedService(version, name, address, protocol string, port int, endpoints ...string) []string {
	service := testbed.ServiceManifest(name, address, protocol, "")
	return []string{testbed.Annotated(service, "sluice.io/proxy-protocol: "+version),
		testbed.SliceManifest(name, 1, port, protocol, endpoints...)}
}

// asking is a connection over which a client asks who it is.
type asking struct {
	net.Conn
	answers *bufio.Reader
	server  string // that has answered
	id      string // of the connection
}

func (a *asking) ask() error {
	if _, err := io.WriteString(a, "GET / HTTP/1.1\r\nHost: web\r\n\r\n"); err != nil {
		return err
	}
	for {
		line, err := a.answers.ReadString('\n')
		if err != nil {
			return err
		}
		f := strings.Fields(line)
		if len(f) < 5 || f[0] != "haproxy" && f[0] != "nginx" {
			continue // a header of HTTP
		}
		a.server = f[0]
		if len(f) > 5 {
			a.id = f[5]
		}
		src, dst := a.LocalAddr().(*net.TCPAddr).AddrPort(), a.RemoteAddr().(*net.TCPAddr).AddrPort()
		if want := fmt.Sprintf("%s %d %s %d", src.Addr(), src.Port(), dst.Addr(), dst.Port()); strings.Join(f[1:5],
			" ") != want {
			return fmt.Errorf("%s has heard %q, want %q", f[0], line, want)
		}
		return nil
	}
}

// TestPROXYIsRead: HAProxy and nginx read who the client is and what it has asked, in both versions and families, while
// a third endpoint refuses each connection that is tried there, through a hand-over, at any moment of it, and on a
// connection that was there before. A server that speaks first is not kept waiting. Identifiers are never the same.
func TestPROXYIsRead(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 3})
	run(t, l.Pods[0], haproxyConfig, "haproxy", "-db", "-f")
	run(t, l.Pods[1], fmt.Sprintf(nginxConfig, t.TempDir()), "nginx", "-e", "stderr", "-c")
	testbed.Keep(t)(l.Pods[0].WhoTCP("127.0.0.1:9000"))
	var six []string
	for _, pod := range l.Pods {
		six = append(six, pod.Addr6.String())
	}
	services := map[string]string{"10.96.0.81:80": "v1", "10.96.0.82:80": "v2", "[fd00:10:96::81]:80": "v1",
		"[fd00:10:96::82]:80": "v2"}
	n := 0
	for address, version := range services {
		endpoints := testbed.Addrs(l.Pods...)
		if address[0] == '[' {
			endpoints = six
		}
		n++
		name := fmt.Sprint("web-", n)
		l.Write(name+".yaml", announcedService(version, name, address, "TCP", 8080, endpoints...)...)
	}
	l.Write("greeting.yaml", announcedService("v2", "greeting", "10.96.0.83:80", "TCP", 8081,
		l.Pods[0].Addr4.String())...)
	socket := filepath.Join(t.TempDir(), "socket")
	l.Start("--handover-socket", socket)
	l.Eventually("HAProxy and nginx listen", func() bool {
		for _, pod := range l.Pods[:2] {
			c, err := l.Node.Dial(t.Context(), "tcp", pod.Addr4.String()+":8080")
			if err != nil {
				return false
			}
			_ = c.Close()
		}
		return true
	})

	var mu sync.Mutex
	ids, heard := make(map[string]bool), make(map[string]int)
	// Each connection has a client port of its own: where one asks two Services at once, the kernel has it come to the
	// proxy from another.
	var ports atomic.Int32
	testbed.Check(t, l.Client.Sysctl("net.ipv4.ip_local_reserved_ports", "2000-9999")) // nor others of this client
	open := func(address string) *asking {
		var c net.Conn
		err := l.Client.Do(func() (err error) {
			from := net.Dialer{LocalAddr: &net.TCPAddr{Port: 2000 + int(ports.Add(1))}, Timeout: testbed.Patience}
			c, err = from.DialContext(t.Context(), "tcp", address)
			return err
		})
		if err != nil {
			t.Error(err)
			return nil
		}
		_ = c.SetDeadline(time.Now().Add(testbed.Patience))
		a := &asking{Conn: c, answers: bufio.NewReader(c)}
		if err := a.ask(); err != nil {
			t.Errorf("%s, %s: %v", address, services[address], err)
		}
		mu.Lock()
		defer mu.Unlock()
		heard[a.server+" "+services[address]]++
		if a.id != "" && ids[a.id] {
			t.Errorf("identifier %s is that of another connection", a.id)
		}
		ids[a.id] = true
		return a
	}
	var held []*asking
	for address := range services {
		for range 6 {
			held = append(held, open(address))
		}
	}
	if name, err := l.Client.Who("10.96.0.83:80"); name != "pod-0" || err != nil {
		t.Errorf("the server that speaks first: %q, %v", name, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop()
	for address := range services {
		clients.Go(func() {
			for ctx.Err() == nil {
				a := open(address)
				if a == nil {
					return
				}
				_ = a.Close()
			}
		})
	}
	for range 3 {
		l.HandOver("--handover-socket", socket)
	}
	stop()
	clients.Wait()
	for _, a := range held {
		if err := a.ask(); err != nil {
			t.Errorf("a connection from before the hand-overs: %v", err)
		}
		_ = a.Close()
	}
	for _, who := range []string{"haproxy v1", "haproxy v2", "nginx v1", "nginx v2"} {
		if heard[who] < 6 {
			t.Errorf("%s has answered %d times: %v", who, heard[who], heard)
		}
	}
	t.Logf("answers: %v", heard)
}

// TestPROXYOfDatagrams: unbound knows clients by the headers of datagrams and of connections, before and after a
// hand-over.
func TestPROXYOfDatagrams(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1})
	pod := l.Pods[0]
	server := run(t, pod, fmt.Sprintf(unboundConfig, pod.Addr4, t.TempDir()), "unbound", "-d", "-c")
	for name, address := range map[string]string{"udp": "10.96.0.53:53", "tcp": "10.96.0.54:53"} {
		l.Write(name+".yaml", announcedService("v2", name, address, strings.ToUpper(name), 5353, pod.Addr4.String())...)
	}
	socket := filepath.Join(t.TempDir(), "socket")
	l.Start("--handover-socket", socket)
	l.Eventually("unbound listens", func() bool {
		c, err := l.Node.Dial(t.Context(), "tcp", pod.Addr4.String()+":5353")
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	askers := []*testbed.Host{l.Client, l.Node}
	for range 2 {
		for _, args := range [][]string{{"@10.96.0.53"}, {"@10.96.0.54", "+tcp"}} {
			for _, from := range askers {
				got := from.Run(t, "dig", append(args, "+short", "+tries=1", "who.test")...)
				if strings.TrimSpace(got) != "203.0.113.9" {
					t.Errorf("%s asks by dig %v: %q", from, args, got)
				}
			}
		}
		l.HandOver("--handover-socket", socket)
	}
	log := server.Log.String()
	for _, from := range askers {
		if n := strings.Count(log, "info: "+from.Addr4.String()+" who.test. A IN"); n != 4 {
			t.Errorf("unbound has heard %d times of %s, want 4: %s", n, from, log)
		}
	}
}
