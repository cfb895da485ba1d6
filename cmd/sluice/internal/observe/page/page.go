package page

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"hash/fnv"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"sync"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/status"
)

//go:embed assets
var assetFiles embed.FS

// styles are part of every page: a browser shows nothing before it has them, and to ask for them takes it as long as to
// lay out the page.
//
//go:embed page.css
var styles literal

// How many rows a table has at most. Each takes a browser 1 ms before it shows anything, so that the first page has
// fewer.
const (
	rows     = 50
	rowsHere = 25
)

// pages makes pages of sources.
type pages struct {
	api    *api.Sources
	assets map[string]asset // by their paths
	policy string           // of a page (status.Policy)
	making sync.Mutex       // held while a page is made: many who ask together take one processor at most
}

// asset is a file that does not change while the process runs.
type asset struct {
	body []byte
	kind string
	tag  string // of its content
}

// Handler serves the pages of sources: /, /service, /events and, under /assets/, what they are shown with.
func Handler(of *api.Sources) (http.Handler, error) {
	hash := sha256.Sum256([]byte(styles))
	p := &pages{api: of, assets: make(map[string]asset),
		policy: status.Policy("'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'")}
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
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", p.show(p.overview))
	mux.HandleFunc("GET /service", p.show(p.service))
	mux.HandleFunc("GET /events", p.show(p.events))
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
}

// body is what a page has of its own.
type body interface{ html(w *writer, f *frame) }

// errNotFound is of what is asked for and is not there.
var errNotFound = errors.New("there is no such Service here: it may have been deleted, or have another name")

// show answers with a page, which is made whole before any of it is sent.
func (p *pages) show(of func(*http.Request, *frame) (body, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		code, page := p.make(of, r)
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Content-Security-Policy", p.policy)
		w.WriteHeader(code)
		_, _ = io.WriteString(w, page) // the client may have gone
	}
}

// make returns a page, or in its place one that says why it is not shown.
func (p *pages) make(of func(*http.Request, *frame) (body, error), r *http.Request) (code int, page string) {
	p.making.Lock()
	defer p.making.Unlock()
	f := &frame{Now: time.Now(), Status: p.api.Whole()}
	code = http.StatusOK
	is, err := of(r, f)
	if err != nil {
		is, f.Title, code = notShown{err.Error()}, "Not shown", http.StatusBadRequest
		if errors.Is(err, errNotFound) {
			code = http.StatusNotFound
		}
	}
	var out writer
	out.top(p, f)
	is.html(&out, f)
	out.bottom()
	return code, out.String()
}
