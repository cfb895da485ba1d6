package interop

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/pion/dtls/v3"
	"github.com/pion/dtls/v3/pkg/crypto/selfsign"
	dtlsnet "github.com/pion/dtls/v3/pkg/net"
	"github.com/quic-go/quic-go"

	"github.com/sluice-lb/sluice/internal/testbed"
)

const dnsAddr = "10.96.0.10:53" // of the Service of datagramClient

// asker asks who answers a client, and from which address it sees it.
type asker func() (string, error)

// TestConversations: a QUIC, a DTLS and a SIP client, and one that asks in single datagrams, each from one socket, keep
// their endpoint over pauses of 20 s, while others ask once from ever new ports so often that Sluice gives their
// sockets back.
func TestConversations(t *testing.T) {
	t.Parallel()
	const ports, pause = 1200, 20 * time.Second
	c := newCluster(t, testbed.Config{})
	testbed.Check(t, c.Node.Sysctl("net.ipv4.ip_local_port_range", fmt.Sprint("40000 ", 40000+ports-1)))
	clients := map[string]asker{"datagrams": datagramClient(t, c), "QUIC": quicClient(t, c), "DTLS": dtlsClient(t, c),
		"SIP": sipClient(t, c)}
	c.start()
	first := map[string]string{}
	for name, ask := range clients {
		var err error
		if first[name], err = ask(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	for range 2 {
		fromNewPorts(t, c, pause)
		for name, ask := range clients {
			if got, err := ask(); err != nil || got != first[name] {
				t.Errorf("%s: answered by %s, and after a pause by %s, %v", name, first[name], got, err)
			}
		}
	}
	if n := c.metric(`sluice_ended_connections_total{protocol="UDP",reason="parked"}`); n < ports {
		t.Errorf("%v flows were parked: the test tests nothing", n)
	}
	for _, reason := range []string{"service_share", "client_share", "limit"} {
		if n := c.metric(fmt.Sprintf(`sluice_ended_connections_total{protocol="UDP",reason=%q}`, reason)); n != 0 {
			t.Errorf("%v flows were evicted by reason %s", n, reason)
		}
	}
	if n := c.metric(`sluice_active_connections{protocol="UDP"}`); n > ports/4 {
		t.Errorf("%v flows are open, want a quarter of %d at most", n, ports)
	}
}

// fromNewPorts asks 250 times a second, each time from a new port, for so long.
func fromNewPorts(t *testing.T, c *cluster, d time.Duration) {
	t.Helper()
	tick := time.NewTicker(4 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
		if name, err := c.Client.TryAsk("udp", dnsAddr, testbed.Patience); err != nil || name == "" {
			t.Fatalf("a question from a new port: answer %q, %v", name, err)
		}
	}
}

// datagramClient has each pod answer single datagrams, and asks so.
func datagramClient(t *testing.T, c *cluster) asker {
	t.Helper()
	for _, pod := range c.Pods {
		testbed.Keep(t)(pod.WhoUDP(pod.Addr4.String() + ":5353"))
	}
	c.publish("dns", dnsAddr, 5353)
	client := testbed.NewUDPClient(t, c.Client, dnsAddr)
	return func() (string, error) { return client.Ask([]byte("?"), testbed.Patience) }
}

// quicClient has each pod serve QUIC, and asks by a stream each.
func quicClient(t *testing.T, lab *cluster) asker {
	t.Helper()
	const addr = "10.96.0.44:443"
	idle := &quic.Config{MaxIdleTimeout: time.Minute, InitialPacketSize: 1200}
	certificate, err := selfsign.GenerateSelfSigned()
	testbed.Check(t, err)
	for _, pod := range lab.Pods {
		conn, err := pod.ListenPacket(t.Context(), "udp", pod.Addr4.String()+":4433")
		testbed.Check(t, err)
		transport := &quic.Transport{Conn: conn}
		ln, err := transport.Listen(&tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"who"}}, idle)
		testbed.Check(t, err)
		serve(t, func() { _ = errors.Join(transport.Close(), conn.Close()) }, func() error {
			c, err := ln.Accept(context.Background())
			if err != nil {
				return err
			}
			for {
				s, err := c.AcceptStream(context.Background())
				if err != nil {
					return err
				}
				_, _ = fmt.Fprintf(s, "%s %s", pod.Name, c.RemoteAddr()) // the client notices what is missing
				_ = s.Close()
			}
		})
	}
	lab.publish("quic", addr, 4433)
	conn, err := lab.Client.ListenPacket(t.Context(), "udp", lab.Client.Addr4.String()+":0")
	testbed.Check(t, err)
	transport := &quic.Transport{Conn: conn}
	t.Cleanup(func() { _ = errors.Join(transport.Close(), conn.Close()) })
	var c *quic.Conn
	return func() (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), testbed.Patience)
		defer cancel()
		if c == nil {
			to, err := net.ResolveUDPAddr("udp", addr)
			if err == nil {
				// The certificate proves nothing: what matters is who answers.
				c, err = transport.Dial(ctx, to, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"who"}}, idle)
			}
			if err != nil {
				return "", err
			}
		}
		s, err := c.OpenStreamSync(ctx)
		if err != nil {
			return "", err
		}
		_, err = s.Write([]byte("?"))
		answer, readErr := io.ReadAll(s)
		return string(answer), errors.Join(err, readErr, s.Close())
	}
}

// dtlsClient has each pod serve DTLS, and asks by a record each.
func dtlsClient(t *testing.T, lab *cluster) asker {
	t.Helper()
	const addr = "10.96.0.45:5684"
	certificate, err := selfsign.GenerateSelfSigned()
	testbed.Check(t, err)
	for _, pod := range lab.Pods {
		conn, err := pod.ListenPacket(t.Context(), "udp", pod.Addr4.String()+":5684")
		testbed.Check(t, err)
		serve(t, func() { _ = conn.Close() }, func() error {
			buf := make([]byte, 1<<16)
			n, client, err := conn.ReadFrom(buf)
			if err != nil {
				return err
			}
			c, err := dtls.ServerWithOptions(&first{PacketConn: conn, data: buf[:n], from: client}, client,
				dtls.WithCertificates(certificate))
			if err != nil {
				return err
			}
			for {
				if _, err = c.Read(buf); err == nil {
					_, err = fmt.Fprintf(c, "%s %s", pod.Name, client)
				}
				if err != nil {
					return err
				}
			}
		})
	}
	lab.publish("dtls", addr, 5684)
	var c *dtls.Conn
	return func() (string, error) {
		if c == nil {
			conn, err := lab.Client.Dial(t.Context(), "udp", addr)
			if err != nil {
				return "", err
			}
			t.Cleanup(func() { _ = conn.Close() })
			c, err = dtls.ClientWithOptions(dtlsnet.PacketConnFromConn(conn), conn.RemoteAddr(),
				dtls.WithInsecureSkipVerify(true))
			if err != nil {
				return "", err
			}
		}
		if _, err := c.Write([]byte("?")); err != nil {
			return "", err
		}
		buf := make([]byte, 100)
		if err := c.SetReadDeadline(time.Now().Add(testbed.Patience)); err != nil {
			return "", err
		}
		n, err := c.Read(buf)
		return string(buf[:n]), err
	}
}

// first is a socket from which one datagram was read already.
type first struct {
	net.PacketConn
	data []byte
	from net.Addr
}

func (f *first) ReadFrom(p []byte) (int, net.Addr, error) {
	if f.data == nil {
		return f.PacketConn.ReadFrom(p)
	}
	n := copy(p, f.data)
	f.data = nil
	return n, f.from, nil
}

// serve runs a server of one client until the end of the test, when it is closed.
func serve(t *testing.T, end func(), one func() error) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- one() }()
	t.Cleanup(func() {
		end()
		t.Logf("a server has ended: %v", <-ended)
	})
}
