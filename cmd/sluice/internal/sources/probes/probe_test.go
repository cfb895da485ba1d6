package probes

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// TestParse: a probe has the kubelet's defaults, and what cannot be done is refused with its name.
func TestParse(t *testing.T) {
	p, err := Parse(`{"tcpSocket": {}}`)
	if err != nil || p.Delay != 0 || p.Period != 10*time.Second || p.Timeout != time.Second || p.Failures != 3 ||
		p.Successes != 1 || p.port != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	p, err = Parse("httpGet: {path: /ready, port: 8081}\ninitialDelaySeconds: 5\nperiodSeconds: 2\ntimeoutSeconds: 3\n" +
		"failureThreshold: 4\nsuccessThreshold: 6")
	if err != nil || p.Delay != 5*time.Second || p.Period != 2*time.Second || p.Timeout != 3*time.Second ||
		p.Failures != 4 || p.Successes != 6 || p.port != 8081 {
		t.Errorf("%+v, %v", p, err)
	}
	for text, want := range map[string]string{
		"":                                         "0 handlers",
		"{}":                                       "0 handlers",
		"{tcpSocket":                               "read probe",
		"tcpsocket: {}":                            "", // JSON names are matched whatever their case
		"tcpSockets: {}":                           "tcpSockets",
		"exec: {command: [x]}":                     "exec",
		"{tcpSocket: {}, grpc: {}}":                "2 handlers [tcpSocket grpc]",
		"tcpSocket: {port: http}":                  `port "http": give a number`,
		"tcpSocket: {port: 65536}":                 "port",
		"tcpSocket: {host: 1.2.3.4}":               "host: leave it out",
		"{tcpSocket: {}, periodSeconds: -1}":       "periodSeconds -1: give 1 to 3600",
		"{tcpSocket: {}, timeoutSeconds: 3601}":    "timeoutSeconds 3601: give 1 to 10",
		"{tcpSocket: {}, failureThreshold: -3}":    "failureThreshold -3",
		"{tcpSocket: {}, initialDelaySeconds: -1}": "initialDelaySeconds",
	} {
		_, err := Parse(text)
		wantFailure(t, err, want)
	}
}

// once makes one check of a server.
func once(t *testing.T, text string, addr net.Addr) error {
	t.Helper()
	p, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return p.Once(ctx, Place{Addr: addr.(*net.TCPAddr).AddrPort()})
}

func wantFailure(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%v, want %q", err, want)
	}
}

func TestTCPSocket(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	wantFailure(t, once(t, "tcpSocket: {}", l.Addr()), "")
	_ = l.Close()
	wantFailure(t, once(t, "tcpSocket: {}", l.Addr()), "refused")
}

// TestHTTPGet: a status from 200 to 399 passes, a redirection is not followed, and headers are sent.
func TestHTTPGet(t *testing.T) {
	mux := http.NewServeMux()
	for path, status := range map[string]int{"/200": 200, "/204": 204, "/302": 302, "/400": 400, "/503": 503} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/503")
			w.WriteHeader(status)
		})
	}
	mux.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "example.com" || r.Header.Get("X-Check") != "yes" || r.Header.Get("User-Agent") != "sluice-check" {
			w.WriteHeader(http.StatusTeapot)
		}
	})
	plain, secure := httptest.NewServer(mux), httptest.NewTLSServer(mux)
	defer plain.Close()
	defer secure.Close()
	for path, want := range map[string]string{"200": "", "/204": "", "/302": "", "/400": "status 400", "/503": "status 503", "/404": "status 404"} {
		wantFailure(t, once(t, "httpGet: {path: '"+path+"'}", plain.Listener.Addr()), want)
		wantFailure(t, once(t, "httpGet: {scheme: HTTPS, path: '"+path+"'}", secure.Listener.Addr()), want)
	}
	wantFailure(t, once(t, "httpGet: {path: /headers, httpHeaders: [{name: Host, value: example.com}, {name: X-Check, value: 'yes'}]}",
		plain.Listener.Addr()), "")
}

// TestSpeaksFirst: what a server says before it is asked is not passed on, neither as an error nor to the log.
func TestSpeaksFirst(t *testing.T) {
	var log strings.Builder
	standard := stdlog.Writer()
	stdlog.SetOutput(&log)
	defer stdlog.SetOutput(standard)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "SSH-2.0-banner\r\n")
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	}()
	for range 20 {
		wantFailure(t, classOf(once(t, "httpGet: {}", l.Addr())), string(errMalformed))
	}
	if strings.Contains(log.String(), "banner") {
		t.Errorf("logged: %s", log.String())
	}
}

// TestHTTPInterim: what comes before the answer proper does not count.
func TestHTTPInterim(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	wantFailure(t, once(t, "httpGet: {}", server.Listener.Addr()), "status 503")
}

// TestGRPC: the server answers as the specifications have it, for gRPC over HTTP/2 and for the health checking
// protocol. What is sent is compared with what their authors' tools send: protoc --encode of a HealthCheckRequest.
func TestGRPC(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/grpc.health.v1.Health/Check", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		answers := map[string]string{ // by request
			"0000000002" + "0a00":                "0000000002" + "0801", // the server itself is SERVING
			"0000000004" + "0a02" + "6462":       "0000000002" + "0802", // "db" is NOT_SERVING
			"0000000005" + "0a03" + "6e6577":     "0000000000",          // "new" is UNKNOWN, the default
			"0000000006" + "0a04" + "6a756e6b":   "ff",                  // "junk"
			"0000000007" + "0a05" + "6f74686572": "",                    // "other" is not known: no message
		}
		answer, known := answers[hex.EncodeToString(body)]
		if !known || r.ProtoMajor != 2 || r.Header.Get("Content-Type") != "application/grpc" || r.Header.Get("Te") != "trailers" {
			t.Errorf("asked %x by %s %v", body, r.Proto, r.Header)
		}
		b, _ := hex.DecodeString(answer)
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
		_, _ = w.Write(b)
		status, message := "0", ""
		if answer == "" {
			status, message = "5", "unknown service"
		}
		w.Header().Set("Grpc-Status", status)
		w.Header().Set("Grpc-Message", message)
	})
	server := httptest.NewUnstartedServer(mux)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	for service, want := range map[string]string{"": "", "db": "health status 2, not SERVING", "new": "health status 0", "junk": "none of this protocol",
		"other": "gRPC status 5"} {
		wantFailure(t, once(t, "grpc: {port: 1, service: '"+service+"'}", server.Listener.Addr()), want)
	}
	plain := httptest.NewServer(mux) // without HTTP/2
	defer plain.Close()
	if err := once(t, "grpc: {port: 1}", plain.Listener.Addr()); err == nil {
		t.Error("a server of HTTP/1 passes")
	}
}

// TestNothingIsLeft: when the time of a check is over its connection is closed, whatever the other side does: one
// accepts and says nothing, the other says too much.
func TestNothingIsLeft(t *testing.T) {
	for _, text := range []string{"httpGet: {scheme: HTTPS}", "httpGet: {}", "grpc: {port: 1}"} {
		for _, chatty := range []bool{false, true} {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			closed := make(chan error, 1)
			go func() {
				c, err := l.Accept()
				if err != nil {
					closed <- err
					return
				}
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(patience))
				if chatty {
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
					for err == nil {
						_, err = io.WriteString(c, "X-Header: "+strings.Repeat("x", 1000)+"\r\n")
					}
				}
				_, err = io.Copy(io.Discard, c)
				closed <- err
			}()
			p, err := Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			err = p.Once(ctx, Place{Addr: l.Addr().(*net.TCPAddr).AddrPort()})
			cancel()
			if err == nil {
				t.Errorf("%s, chatty: %v: %v", text, chatty, err)
			}
			if err := <-closed; errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s, chatty: %v: the connection is still open", text, chatty)
			}
			_ = l.Close()
		}
	}
}
