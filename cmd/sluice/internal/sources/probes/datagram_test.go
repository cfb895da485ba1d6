package probes

import (
	"context"
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/lb"
)

const patience = 10 * time.Second // how long a test waits for what must happen

// TestParseDatagrams: what is wrong with a probe by UDP is refused with its field and what to give.
func TestParseDatagrams(t *testing.T) {
	for text, want := range map[string]string{
		"{dns: {name: kubernetes.default.svc.cluster.local}}":             "",
		"{dns: {name: cluster.local., type: SOA, port: 1053}}":            "",
		"{udp: {send: ping}, periodSeconds: 1}":                           "",
		`{"udp": {"send": "\u0001\u0000", "expect": "pong", "port": 53}}`: "",
		"{dns: {}}":                              "dns.name: give a name",
		"{dns: {name: a..b}}":                    "dns.name: give a name of at most",
		"{dns: {name: " + long(64) + "}}":        "dns.name: give a name of at most",
		"{dns: {name: " + long(300) + "}}":       "dns.name: give a name of at most",
		"{dns: {name: a, type: a}}":              `dns.type "a": give A, AAAA`,
		"{dns: {name: a, port: 65536}}":          `port "65536": give a number`,
		"{dns: {nam: a}}":                        `unknown field "nam"`,
		"{udp: {}}":                              "udp.send: give 1 to 1200 bytes",
		"{udp: {expect: a}}":                     "udp.send: give 1 to 1200 bytes",
		"{udp: {send: " + long(1201) + "}}":      "udp.send: give 1 to 1200 bytes",
		"{udp: {send: a, port: -1}}":             `port "-1"`,
		"{dns: {name: a}, udp: {send: a}}":       "2 handlers [dns udp]",
		"{tcpSocket: {}, dns: {name: a}}":        "2 handlers [tcpSocket dns]",
		"{dns: {name: a}, failureThreshold: -3}": "failureThreshold -3",
	} {
		p, err := Parse(text)
		if want == "" && (err != nil || !p.datagrams) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
}

func long(n int) string { return strings.Repeat("a", n) }

// serve answers each datagram with what answer returns.
func serve(t *testing.T, answer func(asked []byte) (answers [][]byte)) netip.AddrPort {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		b := make([]byte, 2048)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			for _, a := range answer(b[:n]) {
				_, _ = c.WriteTo(a, from)
			}
		}
	}()
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// onceByUDP makes one check of a server.
func onceByUDP(t *testing.T, text string, addr netip.AddrPort, within time.Duration) error {
	t.Helper()
	p, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return p.Once(ctx, Place{Addr: addr})
}

// TestDNS: a server passes that answers the question, and says that there are records or no such name.
func TestDNS(t *testing.T) {
	const asked = "0100" + "0001000000000000" + "03646e73" + "0474657374" + "00" + "0001" + "0001" // RFC 1035, 4.1
	for status, want := range map[byte]string{0: "", 2: "DNS status ServerFailure", 3: "", 5: "DNS status Refused"} {
		addr := serve(t, func(b []byte) [][]byte {
			if got := hex.EncodeToString(b[2:]); got != asked {
				t.Errorf("asked %s, want %s", got, asked)
			}
			other, a := append([]byte{}, b...), append([]byte{}, b...)
			a[2], a[3] = 0x81, 0x80|status
			other[0], other[2], other[3] = ^other[0], 0x81, 0x82
			return [][]byte{other, b, []byte("junk"), a}
		})
		wantFailure(t, onceByUDP(t, "dns: {name: dns.test}", addr, patience), want)
	}
}

func TestUDP(t *testing.T) {
	addr := serve(t, func(b []byte) [][]byte { return [][]byte{append([]byte("pong "), b...)} })
	wantFailure(t, onceByUDP(t, "udp: {send: ping}", addr, patience), "")
	wantFailure(t, onceByUDP(t, "udp: {send: ping, expect: g p}", addr, patience), "")
	wantFailure(t, onceByUDP(t, "udp: {send: ping, expect: up}", addr, patience), "udp.expect")
	silent := serve(t, func([]byte) [][]byte { return nil })
	if err := classOf(onceByUDP(t, "udp: {send: ping}", silent, 50*time.Millisecond)); !errors.Is(err, errTimeout) {
		t.Errorf("%v, want %v", err, errTimeout)
	}
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := c.LocalAddr().(*net.UDPAddr).AddrPort()
	_ = c.Close()
	wantFailure(t, onceByUDP(t, "udp: {send: ping}", gone, patience), "refused")
}

// TestPROXYDatagram: a datagram to the port that gets PROXY headers has one, too, and no other.
func TestPROXYDatagram(t *testing.T) {
	asked := make(chan string, 100)
	addr := serve(t, func(b []byte) [][]byte { asked <- string(b); return [][]byte{b} })
	s := &lb.Service{ID: lb.ID{Protocol: lb.UDP}, Policies: &lb.Policies{ProxyProtocol: "v2"}}
	probe, err := Parse("udp: {send: ping}")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_ = probe.Ask(ctx, probe.At(s, addr)) // an echo is not judged
	if got, want := <-asked, "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00ping"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for text, protocol := range map[string]lb.Protocol{"udp: {send: a}": lb.TCP, "tcpSocket: {}": lb.UDP} {
		p, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		other := *s
		if other.Protocol = protocol; p.At(&other, addr).Proxy != 0 {
			t.Errorf("%s has a header at a port of %s", text, protocol)
		}
	}
}
