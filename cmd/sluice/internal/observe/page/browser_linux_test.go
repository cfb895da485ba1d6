package page

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
)

// browser is a Chromium without a screen, driven by the DevTools protocol over two pipes.
type browser struct {
	t    *testing.T
	ctx  context.Context
	in   *os.File
	out  chan message
	next int
	tab  string // the session of the only tab

	complaints []string // of the console, security included
}

// message is a command, its answer or an event.
type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

// newBrowser starts one, which ends with the test.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("Chromium is missing: make deps installs it")
	}
	toIt, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, fromIt, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	cmd := exec.CommandContext(ctx, program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--disable-background-networking", "--hide-scrollbars", "--window-size=1400,1000",
		"--user-data-dir="+filepath.Join(t.TempDir(), "profile"), "--remote-debugging-pipe")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.ExtraFiles = []*os.File{toIt, fromIt}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // with its children
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = toIt.Close(), fromIt.Close()
	b := &browser{t: t, ctx: ctx, in: in, out: make(chan message, 1024)}
	read := make(chan struct{})
	go func() { defer close(read); defer close(b.out); b.read(out) }()
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		_, _ = in.Close(), out.Close()
		<-read
		if t.Failed() {
			t.Logf("the browser says:\n%.4000s", log.String())
		}
	})
	var target struct{ TargetID, SessionID string }
	b.do("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	b.do("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &target)
	b.tab = target.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Accessibility"} {
		b.do(domain+".enable", nil, nil)
	}
	return b
}

// read reads messages, each of which ends with a NUL.
func (b *browser) read(from io.Reader) {
	for r := bufio.NewReader(from); ; {
		text, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m) == nil {
			select {
			case b.out <- m:
			case <-b.ctx.Done():
				return
			}
		}
	}
}

// await returns the next message that is wanted, and notes complaints meanwhile.
func (b *browser) await(what string, wanted func(*message) bool) message {
	b.t.Helper()
	for {
		select {
		case <-b.ctx.Done():
			b.t.Fatalf("the browser: %s: %v", what, b.ctx.Err())
		case m, ok := <-b.out:
			if !ok {
				b.t.Fatalf("the browser has ended: %s", what)
			}
			b.note(&m)
			if wanted(&m) {
				return m
			}
		}
	}
}

// note remembers what the console says, but for what a page may say in peace.
func (b *browser) note(m *message) {
	switch m.Method {
	case "Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled":
		b.complaints = append(b.complaints, fmt.Sprintf("%s %s", m.Method, m.Params))
	}
}

// do sends a command and waits for its answer.
func (b *browser) do(method string, params, answer any) {
	b.t.Helper()
	b.next++
	m := message{ID: b.next, Session: b.tab, Method: method}
	var err error
	if params != nil {
		m.Params, err = json.Marshal(params)
	}
	text, marshalErr := json.Marshal(m)
	if err = errors.Join(err, marshalErr); err == nil {
		_, err = b.in.Write(append(text, 0))
	}
	if err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	got := b.await(method, func(m *message) bool { return m.ID == b.next })
	if got.Error != nil {
		b.t.Fatalf("%s: %s", method, got.Error)
	}
	if answer != nil {
		if err := json.Unmarshal(got.Result, answer); err != nil {
			b.t.Fatalf("%s: %v", method, err)
		}
	}
}

// open goes to an address and waits until it is loaded.
func (b *browser) open(address string) {
	b.t.Helper()
	b.do("Page.navigate", map[string]any{"url": address}, nil)
	b.await("load "+address, func(m *message) bool { return m.Method == "Page.loadEventFired" })
}

// js returns what an expression is, which may be a promise.
func (b *browser) js(expression string) string {
	b.t.Helper()
	var got struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	b.do("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true},
		&got)
	if got.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, got.ExceptionDetails)
	}
	return fmt.Sprint(got.Result.Value)
}

// until waits until a condition is true, at each change of the document.
func (b *browser) until(what, condition string) {
	b.t.Helper()
	got := b.js(`new Promise((done) => {
		const is = () => ` + condition + `;
		if (is()) return done("true");
		const watch = new MutationObserver(() => { if (is()) { watch.disconnect(); done("true"); } });
		watch.observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
		setTimeout(() => done("timeout"), 30000);
	})`)
	if got != "true" {
		b.t.Errorf("%s: it did not come", what)
	}
}

// press presses a key.
func (b *browser) press(key string) {
	b.t.Helper()
	b.do("Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": key, "text": key}, nil)
	b.do("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key}, nil)
}

// look takes a picture, which go test -artifacts keeps, and returns how light its corner is, from 0 to 255.
func (b *browser) look(name string) uint32 {
	b.t.Helper()
	var shot struct{ Data string }
	b.do("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true}, &shot)
	raw, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.t.ArtifactDir(), name+".png"), raw, 0o600); err != nil {
		b.t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(raw))
	if err != nil {
		b.t.Fatal(err)
	}
	_, green, _, _ := img.At(2, img.Bounds().Dy()-2).RGBA()
	return green >> 8
}

// named checks that everything that a person can use, or looks at, has a name for those who do not see it.
func (b *browser) named(page string) {
	b.t.Helper()
	var tree struct {
		Nodes []struct {
			Ignored    bool
			Role, Name struct{ Value any }
		}
	}
	b.do("Accessibility.getFullAXTree", nil, &tree)
	count := make(map[string]int)
	for _, n := range tree.Nodes {
		role := fmt.Sprint(n.Role.Value)
		switch role {
		case "link", "button", "textbox", "searchbox", "combobox", "checkbox", "image", "img", "table", "region",
			"meter",
			"columnheader", "rowheader", "navigation", "heading", "option", "search":
			name, _ := n.Name.Value.(string)
			if count[role]++; !n.Ignored && strings.TrimSpace(name) == "" && role != "search" {
				b.t.Errorf("%s has a %s without a name", page, role)
			}
		}
	}
	for _, role := range []string{"link", "table", "columnheader", "rowheader", "heading", "navigation"} {
		if count[role] == 0 {
			b.t.Errorf("%s has no %s", page, role)
		}
	}
}

// TestBrowser: Chromium shows the pages, by day and by night, without a complaint; everything in them has a name; what
// changes is put in place, the keyboard leads to the search, and without JavaScript they are whole.
func TestBrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 300)
	b := newBrowser(t)
	scheme := func(name string) {
		b.do("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{
			{"name": "prefers-color-scheme", "value": name}}}, nil)
	}
	pages := map[string]string{"overview": "/",
		"service": "/service?namespace=default&name=web&address=TCP+10.96.0.10:80",
		"rolling": "/service?namespace=shop&name=cart", "events": "/events"}
	for name, path := range pages {
		scheme("light")
		b.open(w.url + path)
		t.Logf("%s: first contentful paint after %s ms", name,
			b.js(`new Promise((done) => new PerformanceObserver((l) => {
				for (const e of l.getEntries()) if (e.name === "first-contentful-paint") done(e.startTime);
			}).observe({ type: "paint", buffered: true }))`))
		b.named(name)
		if light := b.look(name + "-light"); light < 200 {
			t.Errorf("%s is not light by day: %d", name, light)
		}
		scheme("dark")
		if light := b.look(name + "-dark"); light > 60 {
			t.Errorf("%s is not dark by night: %d", name, light)
		}
		if b.js(`document.documentElement.scrollWidth <= document.documentElement.clientWidth`) != "true" {
			t.Errorf("%s is wider than the window", name)
		}
	}
	b.open(w.url + "/service?namespace=default&name=web")
	if rows := b.js(`document.querySelectorAll("section[aria-labelledby=connections] tbody tr").length`); rows != "50" {
		t.Errorf("the page of a Service has %s connections", rows)
	}
	b.js(`document.querySelector("section[aria-labelledby=connections] .scroll").focus()`)
	if name := b.js(`document.activeElement.getAttribute("aria-label")`); name != "Table of connections" {
		t.Errorf("the keyboard leads to %q", name)
	}
	b.open(w.url + "/")
	if rows := b.js(`document.querySelectorAll("tbody tr").length`); rows != fmt.Sprint(rowsHere) {
		t.Errorf("the table has %s rows", rows)
	}
	// A link keeps the focus while what is around it changes.
	b.js(`document.querySelector("tbody tr:nth-child(2) a").focus()`)
	shown := b.js(`document.activeElement.textContent`)
	w.Journal.Remember(journal.Entry{Reason: "Test", Note: "an event of the test"})
	b.until("an event is shown in place", `document.body.textContent.includes("an event of the test")`)
	if now := b.js(`document.activeElement.textContent`); now != shown || !strings.Contains(shown, "/") {
		t.Errorf("the focus was on %q and is on %q", shown, now)
	}
	b.press("/")
	if id := b.js(`document.activeElement.id + document.activeElement.value`); id != "q" {
		t.Errorf("/ leads to %q", id)
	}
	b.js(`document.querySelector("#updates button").click()`)
	if said := b.js(`document.getElementById("updates").textContent`); said != "PausedResume" {
		t.Errorf("the updates are %q", said)
	}
	b.do("Emulation.setScriptExecutionDisabled", map[string]any{"value": true}, nil)
	b.open(w.url + "/?q=shop")
	var whole struct{ Result struct{ Value string } }
	b.do("Runtime.evaluate", map[string]any{"expression": `document.body.innerText`}, &whole)
	if said := whole.Result.Value; !strings.Contains(said, "shop/payments") || strings.Contains(said, "Pause") {
		t.Errorf("without JavaScript the page is %.2000s", said)
	}
	if len(b.complaints) > 0 {
		t.Errorf("the console has %q", b.complaints)
	}
}
