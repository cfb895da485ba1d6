package status

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestInside: the page and the API are answered to this host, asked by its own name, and to no page of another site.
func TestInside(t *testing.T) {
	inside := &Inside{Inner: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "shown")
	})}
	l, err := net.Listen("tcp4", "0.0.0.0:0") // whatever is bound
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(Info{Metrics: http.NotFoundHandler(), Inside: inside}.Handler())
	_ = s.Listener.Close()
	s.Listener = l
	s.Start()
	defer s.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	ask := func(method, address, host string, headers ...string) (int, string, http.Header) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+net.JoinHostPort(address,
			port)+"/v1/status", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body), resp.Header
	}
	const here = "127.0.0.1"
	for _, x := range []struct {
		host    string
		headers []string
		code    int
	}{
		{"localhost", nil, 200}, {"LOCALHOST:8080", nil, 200}, {"localhost.", nil, 200}, {"127.0.0.1:10249", nil, 200},
		{"127.0.0.2", nil, 200}, {"[::1]:10249", nil, 200}, {"[::ffff:127.0.0.1]:1", nil, 200},
		{"evil.example", nil, 403}, {"evil.example:10249", nil, 403}, {"localhost.evil.example", nil, 403},
		{"127.0.0.1.evil.example", nil, 403}, {"192.0.2.1", nil, 403},
		{"localhost:1", []string{"Origin", "http://localhost:1"}, 200},
		{"localhost:1", []string{"Origin", "http://evil.example"}, 403},
		{"localhost:1", []string{"Origin", "null"}, 403},
		{"localhost:1", []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "cors"}, 200},
		{"localhost:1", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, 200},
		{"localhost:1", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}, 403},
		{"localhost:1", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"}, 403},
	} {
		code, body, h := ask("GET", here, x.host, x.headers...)
		if code != x.code || (body == "shown") != (code == 200) {
			t.Errorf("asked as %s with %q: %d %s, want %d", x.host, x.headers, code, body, x.code)
		}
		for name := range h {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("asked as %s the answer has header %s", x.host, name)
			}
		}
		if !strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none'; ") ||
			strings.Contains(h.Get("Content-Security-Policy"), "unsafe") ||
			h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("asked as %s the headers are %v", x.host, h)
		}
	}
	for method, want := range map[string]int{"HEAD": 200, "POST": 405, "PUT": 405, "DELETE": 405, "OPTIONS": 405} {
		if code, _, _ := ask(method, here, "localhost"); code != want {
			t.Errorf("%s = %d, want %d", method, code, want)
		}
	}
	// A connection to an address of the node, as the server would pass it on.
	const other = "192.0.2.1"
	from := func(client, host string, headers ...string) (int, string) {
		req := httptest.NewRequest("GET", "/v1/status", nil)
		req.Host, req.RemoteAddr = host, client
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		local := &net.TCPAddr{IP: net.ParseIP(other), Port: 10249}
		req = req.WithContext(context.WithValue(req.Context(), http.LocalAddrContextKey, local))
		answer := httptest.NewRecorder()
		s.Config.Handler.ServeHTTP(answer, req)
		return answer.Code, answer.Body.String()
	}
	for _, client := range []string{"192.0.2.9:1000", "127.0.0.1:1000", other + ":1000"} {
		if code, body := from(client, "localhost"); code != 403 || !strings.Contains(body, "--page=always") {
			t.Errorf("%s by an address of the node: %d %s", client, code, body)
		}
	}
	inside.Anywhere = true
	if code, body := from("192.0.2.9:1000", "node-1.example"); code != 200 {
		t.Errorf("by an address of the node with --page=always: %d %s", code, body)
	}
	if code, body := from("192.0.2.9:1000", "node-1.example", "Origin", "http://evil.example"); code != 403 {
		t.Errorf("from a page of another site with --page=always: %d %s", code, body)
	}
}

// TestNeverInside: without the page there is nothing at its paths.
func TestNeverInside(t *testing.T) {
	h := Info{Metrics: http.NotFoundHandler()}.Handler()
	for _, path := range []string{"/", "/service", "/events", "/v1", "/v1/status", "/assets/page.css"} {
		if code, _, _ := get(t, h, "GET", path); code != http.StatusNotFound {
			t.Errorf("%s = %d", path, code)
		}
	}
}
