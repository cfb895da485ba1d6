package testbed

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
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
