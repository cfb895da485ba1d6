package status

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// insidePaths are those of the metrics address at which the running process can be looked into.
var insidePaths = []string{"/{$}", "/service", "/events", "/assets/", "/v1", "/v1/"}

// Inside guards the page and the API of the metrics address, which say who asks whom. Unless Anywhere is set, they are
// for this host only: both ends of the connection are loopback addresses, whatever address is bound. There the Host
// header has to be one too, since a page of another site may have its name resolved to 127.0.0.1 (DNS rebinding).
type Inside struct {
	Anywhere bool
	Inner    http.Handler // answers who may ask
}

// Policy is what a page may load: its own files, and the styles of a source, which may be the hash of those in it.
func Policy(styles string) string {
	return "default-src 'none'; style-src " + styles + "; script-src 'self'; img-src 'self' data:; " +
		"connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
}

// ServeHTTP answers who may ask.
func (i *Inside) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", Policy("'none'"))
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin") // no other site has it in an element of its own
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY") // older browsers
	if why := i.refuses(r); why != "" {
		write(w, http.StatusForbidden, "text/plain; charset=utf-8", "Sluice does not show this "+why+"\n")
		return
	}
	i.Inner.ServeHTTP(w, r)
}

// refuses says to whom a request is not answered.
func (i *Inside) refuses(r *http.Request) string {
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || !strings.EqualFold(u.Host, r.Host) {
			return "to other sites"
		}
	}
	if site := r.Header.Get("Sec-Fetch-Site"); (site == "cross-site" || site == "same-site") &&
		r.Header.Get("Sec-Fetch-Mode") != "navigate" { // a link from elsewhere may lead here
		return "to other sites"
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	switch {
	case i.Anywhere:
	case local == nil || !loopback(local.String()) || !loopback(r.RemoteAddr):
		return "to other hosts: use kubectl port-forward or ssh -L, or set --page=always"
	case r.Host != "" && !loopbackName(r.Host): // HTTP/1.0 has none, and no browser speaks it
		return "by the name of another host: ask for localhost, or give --page=always"
	}
	return ""
}

// loopback reports whether an address with a port is one that no other host can have.
func loopback(text string) bool {
	a, err := netip.ParseAddrPort(text)
	return err == nil && a.Addr().Unmap().IsLoopback()
}

// loopbackName reports whether a Host header, with or without a port, names this host for itself.
func loopbackName(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if strings.EqualFold(strings.TrimSuffix(name, "."), "localhost") {
		return true
	}
	a, err := netip.ParseAddr(name)
	return err == nil && a.Unmap().IsLoopback()
}
