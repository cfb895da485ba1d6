package page

import (
	"bytes"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"html/template"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/api"
)

//go:embed templates/*.html
var templateFiles embed.FS

//go:embed assets
var assetFiles embed.FS

// rows is how many rows a table has at most.
const rows = 100

// pages makes pages of sources.
type pages struct {
	api    *api.Sources
	assets map[string]asset // by their paths
	html   *template.Template
}

// asset is a file that does not change while the process runs.
type asset struct {
	body []byte
	kind string
	tag  string // of its content
}

// Handler serves the pages of sources: /, /service, /events and, under /assets/, what they are shown with.
func Handler(of *api.Sources) (http.Handler, error) {
	p := &pages{api: of, assets: make(map[string]asset)}
	err := fs.WalkDir(assetFiles, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := assetFiles.ReadFile(name)
		sum := fnv.New64a()
		_, _ = sum.Write(body)
		p.assets["/"+name] = asset{body, mime.TypeByExtension(path.Ext(name)), hex.EncodeToString(sum.Sum(nil))}
		return err
	})
	if err != nil {
		return nil, err
	}
	p.html, err = template.New("").Funcs(template.FuncMap{"asset": p.asset, "count": count, "bytes": bytesOf,
		"ago": ago, "span": span, "clock": clock, "cut": cut}).ParseFS(templateFiles, "templates/*.html")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", p.show("overview.html", p.overview))
	mux.HandleFunc("GET /service", p.show("service.html", p.service))
	mux.HandleFunc("GET /events", p.show("events.html", p.events))
	mux.HandleFunc("GET /assets/", p.serveAsset)
	return mux, nil
}

// asset returns the address of a file, which is another one for another content.
func (p *pages) asset(name string) string {
	name = "/assets/" + name
	return name + "?v=" + p.assets[name].tag
}

func (p *pages) serveAsset(w http.ResponseWriter, r *http.Request) {
	a, ok := p.assets[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", a.kind)
	w.Header().Set("Cache-Control", "max-age=86400")
	_, _ = w.Write(a.body)
}

// frame is what every page has around its body.
type frame struct {
	Title  string
	Tab    string // of the navigation, where this page is
	Now    time.Time
	Status api.Status
	Body   any
}

// errNotFound is of what is asked for and is not there.
var errNotFound = errors.New("there is no such Service here: it may have been deleted, or have another name")

// show answers with a page, which is made whole before any of it is sent.
func (p *pages) show(name string, body func(*http.Request, *frame) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		f := &frame{Now: time.Now(), Status: p.api.Status()}
		code, name := http.StatusOK, name
		if err := body(r, f); err != nil {
			name, f.Title, f.Body = "error.html", "Not shown", err.Error()
			code = http.StatusBadRequest
			if errors.Is(err, errNotFound) {
				code = http.StatusNotFound
			}
		}
		var out bytes.Buffer
		if err := p.html.ExecuteTemplate(&out, name, f); err != nil {
			http.Error(w, "The page cannot be made: "+err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(code)
		_, _ = w.Write(visible(out.Bytes())) // the client may have gone
	}
}

// visible escapes what has no shape, or another effect than one: control characters, marks of direction, and bytes that
// are no text. html/template leaves them as they are, and no template has them, so they come from names and notes.
func visible(page []byte) []byte {
	shown := func(r rune) bool { return unicode.IsPrint(r) || r == '\n' || r == nonBreaking }
	if bytes.IndexFunc(page, func(r rune) bool { return !shown(r) || r == utf8.RuneError }) < 0 {
		return page
	}
	out := make([]byte, 0, len(page)+256)
	for len(page) > 0 {
		r, size := utf8.DecodeRune(page)
		switch {
		case r == utf8.RuneError && size == 1:
			out = fmt.Appendf(out, `\x%02x`, page[0])
		case shown(r):
			out = append(out, page[:size]...)
		default:
			quoted := strconv.QuoteRune(r)
			out = append(out, quoted[1:len(quoted)-1]...)
		}
		page = page[size:]
	}
	return out
}
