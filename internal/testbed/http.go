package testbed

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// Get fetches a URL with a numeric address from inside the host, by a connection of
// its own, until ctx is done.
func (h *Host) Get(ctx context.Context, url string) (code int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	client := http.Client{Transport: &http.Transport{DialContext: h.Dial, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, "", err
	}
	return resp.StatusCode, string(b), nil
}

// Page is Get for at most [Patience]. Code 0: nothing answers, and the text says why.
func (h *Host) Page(url string) (code int, text string) {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	code, text, err := h.Get(ctx, url)
	if err != nil {
		return 0, err.Error()
	}
	return code, text
}

// Metric returns the value of a series on a page of metrics, which has to be there.
func Metric(t testing.TB, page, series string) float64 {
	t.Helper()
	value, ok := Series(page, series)
	if !ok {
		t.Fatalf("no metric %s in:\n%s", series, page)
	}
	return value
}

// Series returns the value of a series, named as a page of metrics writes it. False:
// the page has none of that name.
func Series(page, name string) (value float64, ok bool) {
	for line := range strings.Lines(page) {
		if text, found := strings.CutPrefix(line, name+" "); found {
			value, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			return value, err == nil
		}
	}
	return 0, false
}
