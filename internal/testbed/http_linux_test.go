package testbed

import (
	"fmt"
	"net/http"
	"testing"
)

// TestGet asks a server that only the host's own namespace has.
func TestGet(t *testing.T) {
	tb := NewT(t, Config{Pods: 1})
	l, err := tb.Node.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprint(w, r.URL.Path)
	})}
	ended := make(chan error)
	go func() { ended <- s.Serve(l) }()
	url := "http://" + l.Addr().String() + "/path"
	if code, body, err := tb.Node.Get(t.Context(), url); code != http.StatusTeapot || body != "/path" || err != nil {
		t.Errorf("Get = %d, %q, %v", code, body, err)
	}
	if code, body, err := tb.Client.Get(t.Context(), url); err == nil {
		t.Errorf("Get on another host = %d, %q", code, body)
	}
	s.Close()
	<-ended
}

func TestSeries(t *testing.T) {
	const page = "# HELP a what a is\na{x=\"1\"} 12\na 1.5e3\nab 7\nbad x\nlast 3"
	for name, want := range map[string]float64{`a{x="1"}`: 12, "a": 1500, "ab": 7, "last": 3} {
		if got, ok := Series(page, name); got != want || !ok {
			t.Errorf("Series %s = %g, %v", name, got, ok)
		}
	}
	for _, name := range []string{"b", "a{x=\"2\"}", "bad", "# HELP"} {
		if got, ok := Series(page, name); ok {
			t.Errorf("Series %s = %g", name, got)
		}
	}
}
