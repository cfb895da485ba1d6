package page

import (
	"io"
	"net/http"
	"os"
	"testing"
)

func get(t *testing.T, url string) (int, http.Header, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(body)
}

func TestServe(t *testing.T) {
	w := newWorld(t, 300)
	code, _, body := get(t, w.url+"/")
	t.Log(code, len(body))
	os.WriteFile("/tmp/page-url", []byte(w.url), 0o600)
	if os.Getenv("PAGE_SERVE") != "" {
		select {}
	}
	t.Log(body[:3000])
}
