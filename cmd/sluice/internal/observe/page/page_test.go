package page

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/cli"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/status"
	"github.com/sluice-lb/sluice/internal/look"
)

func get(t testing.TB, address string) (int, http.Header, string) {
	t.Helper()
	resp, err := http.Get(address)
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

// page returns a page, which must be shown.
func (w *world) page(t testing.TB, path string) string {
	t.Helper()
	code, _, body := get(t, w.url+path)
	if code != http.StatusOK {
		t.Fatalf("%s = %d\n%s", path, code, body)
	}
	return body
}

// text returns what a page says, without its elements.
func text(page string) string {
	page = regexp.MustCompile(`(?s)<(title|desc|symbol|style).*?</(title|desc|symbol|style)>`).ReplaceAllString(page, " ")
	page = html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(page, " "))
	return strings.Join(strings.Fields(page), " ") // no-break spaces too
}

// names returns the Services of a page's table, in their order.
func names(page string) (out []string) {
	link := regexp.MustCompile(`<th scope="row" class="name"><a [^>]*><bdi>([^<]*)`)
	for _, m := range link.FindAllStringSubmatch(page, -1) {
		out = append(out, html.UnescapeString(m[1]))
	}
	return out
}

func expect(t *testing.T, what, page string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		if !strings.Contains(page, want) {
			t.Errorf("%s does not have %q:\n%.4000s", what, want, page)
		}
	}
}

// TestOverview: the first page shows the node, what it did, what has changed, and Services, those in trouble first.
func TestOverview(t *testing.T) {
	w := newWorld(t, 300)
	page := w.page(t, "/")
	expect(t, "the first page", text(page), "node-1 · v1.4.0", "Open 5,187 TCP 5,123 UDP 64",
		"Path userspace steered by nftables",
		"/etc/sluice/a.yaml:6: not valid YAML 1 more condition", "10,374 of 1,048,576", "Hand-overs 2 last 6 min ago serving for 2 d 2 h", "heard 2 min ago", "1,234 in all",
		"NoEndpoints shop/checkout none is ready", "all 306 down 1 failing 1 partial 1 ok 303", "1 to 25 of 306",
		"down shop/checkout port htpp is none 10.96.0.13:80 userspace 0 / 0 0 0 0 0 0 22 +0.",
		"partial shop/cart 1 endpoint gets no new connections 10.96.0.11:80 userspace 3 / 4",
		"shop/payments 10.96.0.14:80 userspace not as requested 3 / 3")
	expect(t, "the first page", page, "Hand-overs: 1.", `<path class="handover"`, "Hand-over at 20", `href="/?page=2"`,
		`aria-sort="descending"`, "The last 15 minutes: now 300, at most 300")
	if got := names(page); len(got) != rowsHere || got[0] != "shop/checkout" || got[1] != "shop/payments" ||
		got[2] != "shop/cart" || got[3] != "default/web" {
		t.Errorf("there are %d Services, the first are %q", len(got), got[:5])
	}
}

// TestQuery: search, states, orders and pages hold together.
func TestQuery(t *testing.T) {
	w := newWorld(t, 300)
	for _, x := range []struct {
		path  string
		count int
		first string
		more  string
	}{
		{"/?page=2", rowsHere, "", "26 to 50 of 306"}, {"/?page=13", 6, "", "301 to 306 of 306"},
		{"/?page=99", 6, "", "301 to 306 of 306"}, {"/?page=-1", rowsHere, "shop/checkout", "1 to 25"},
		{"/?q=TEAM-07", 8, "team-07/service-00007", "1 to 8 of 8"}, {"/?q=service+00123", 1, "team-03/service-00123",
			""},
		{"/?q=10.96.0.10", 1, "default/web", ""}, {"/?q=10.96.0.12:53", 1, "kube-system/kube-dns", ""},
		{"/?q=10.244.11.4", 1, "shop/cart", "shop/cart"}, {"/?q=198.51.100.80", 1, "default/web", ""},
		{"/?q=nothing", 0, "", "No Service is found."}, {"/?state=down", 1, "shop/checkout", ""},
		{"/?state=partial&q=shop", 1, "shop/cart", ""}, {"/?state=failing", 1, "shop/payments", ""},
		{"/?sort=name", rowsHere, "default/web", ""}, {"/?sort=open", rowsHere, "default/web", ""},
		{"/?sort=failures", rowsHere, "shop/payments", ""}, {"/?sort=refused", rowsHere, "shop/checkout", ""},
		{"/?sort=rate", rowsHere, "default/web", ""}, {"/?sort=out", rowsHere, "default/web", ""}, {"/?sort=%3Cb%3E", rowsHere,
			"shop/checkout", ""},
	} {
		page := w.page(t, x.path)
		got := names(page)
		if len(got) != x.count || x.first != "" && got[0] != x.first {
			t.Errorf("%s has %d Services, want %d, the first are %q", x.path, len(got), x.count, got[:min(3, len(got))])
		}
		expect(t, x.path, text(page), x.more)
	}
	// The next page is of the same query.
	expect(t, "a page of a query", w.page(t, "/?q=service&sort=name"), `href="/?page=2&amp;q=service&amp;sort=name"`,
		`href="/?q=service&amp;sort=name&amp;state=down"`, `name="sort" value="name"`)
}

// TestService: the page of a Service shows where connections go, and answers what becomes of a client.
func TestService(t *testing.T) {
	w := newWorld(t, 3)
	page := w.page(t, "/service?namespace=default&name=web")
	expect(t, "the page of a Service", text(page), "web ok 201 open", "10.96.0.10:80 cluster IP",
		"0.0.0.0:30080 node port",
		"198.51.100.80:80 load-balancer IP 192.0.2.0/24", "userspace, by nftables", "--proxy-mode userspace",
		"ready 10.244.10.2:8080 TCP IPv4 3 121 4,079 0", "scheduler lc annotation TCP IPv4 yes",
		"sluice connections default/web", "60 %", "20 %")
	expect(t, "the page of a Service", page, `<path class="line" d="M`,
		"connections take path userspace, by nftables to 3 of 3 endpoints")
	page = w.page(t, "/service?namespace=shop&name=cart")
	expect(t, "one that rolls", text(page), "cart partial", "terminating 10.244.11.4:8080",
		"EndpointsChanged shop/cart ready 3, was 4")
	page = w.page(t, "/service?namespace=shop&name=cart&unhealthy=1")
	expect(t, "one that rolls, by trouble", text(page), "terminating 10.244.11.4:8080", "All endpoints")
	page = w.page(t, "/service?namespace=shop&name=checkout")
	expect(t, "one without endpoints", text(page), "checkout down", "port htpp is none", "no endpoint for new connections",
		"There are no endpoints.")
	page = w.page(t, "/service?namespace=kube-system&name=kube-dns")
	expect(t, "one of two ports", text(page), "dns UDP IPv4 10.96.0.12:80", "dns-tcp TCP IPv4 10.96.0.12:80")
	page = w.page(t, "/service?"+url.Values{"namespace": {"default"}, "name": {"web"}, "client": {"192.0.2.7"},
		"address": {"TCP 198.51.100.80:80"}}.Encode())
	expect(t, "the answer", page, "<pre ", "192.0.2.7")
	expect(t, "the answer", text(page), "default/web", "10.244.10.")
	page = w.page(t, "/service?namespace=default&name=web&client=x&address=TCP+10.96.0.10:80")
	expect(t, "the answer", text(page), `client "x" is not an IP address`)
	for path, want := range map[string]int{"/service?namespace=default&name=none": 404, "/service": 404,
		"/service?namespace=default&name=web&continue=%21": 400, "/other": 404, "/assets/other": 404} {
		if code, _, body := get(t, w.url+path); code != want || strings.Contains(body, "panic") {
			t.Errorf("%s = %d, want %d", path, code, want)
		}
	}
}

// TestEvents: the newest comes first, and filters hold.
func TestEvents(t *testing.T) {
	w := newWorld(t, 3)
	page := text(w.page(t, "/events"))
	expect(t, "the events", page, "It has taken over 6 min ago from process 4242; hand-overs so far: 2.",
		"warning NoEndpoints shop/checkout none is ready", "hand-over TookOver", "1 to 5 of 5")
	if strings.Index(page, "NoEndpoints") > strings.Index(page, "Serving version") {
		t.Errorf("the oldest comes first:\n%s", page)
	}
	expect(t, "warnings", text(w.page(t, "/events?warnings=1")), "NoEndpoints", "1 to 1 of 1")
	expect(t, "events of cart", text(w.page(t, "/events?q=CART+ready")), "EndpointsChanged shop/cart", "1 to 1 of 1")
	for i := range 1500 {
		w.Journal.Remember(api.Event{Reason: "Test", Note: fmt.Sprint("number ", i)})
	}
	expect(t, "many events", text(w.page(t, "/events")), "number 1499", "1 to 50 of 1,000")
	expect(t, "the last page", text(w.page(t, "/events?page=20&q=test")), "number 500", "951 to 1,000 of 1,000",
		"Previous")
}

// TestHostile: names that are HTML, obey terminals or have no end are text, on every page, in attributes and links too.
func TestHostile(t *testing.T) {
	w := newWorld(t, 3)
	own := "/service?" + url.Values{"namespace": {hostile}, "name": {hostile}}.Encode()
	own += "&" + url.Values{"client": {hostile}, "address": {"TCP " + hostile}}.Encode()
	for _, path := range []string{"/?q=x", "/", "/events", own, "/?" + url.Values{"q": {hostile},
		"sort": {hostile}}.Encode(),
		"/events?" + url.Values{"q": {hostile}}.Encode()} {
		page := w.page(t, path)
		if strings.Contains(page, "<script>") || strings.Count(page, "<script") != 1 {
			t.Errorf("%.40s has a script that is a name", path)
		}
		for _, r := range page {
			if r != '\n' && (r < ' ' || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r == 0xfffd) {
				t.Errorf("%.40s has the character %U", path, r)
				break
			}
		}
		inline := regexp.MustCompile(`(?i) (style|on\w+)=|javascript:|href="(https?:)?//|src="(https?:)?//`)
		if m := inline.FindString(page); m != "" {
			t.Errorf("%.40s has %q", path, m)
		}
	}
	expect(t, "the name", w.page(t, "/?q=alert"), `alert(1)&lt;/script&gt;\x1b[31m`, `\u202e`)
	expect(t, "the command", text(w.page(t, own)), `sluice connections 'x"><script>`)
	// The link to it leads to it.
	m := regexp.MustCompile(`href="(/service\?name=x[^"]*)"`).FindStringSubmatch(w.page(t, "/?q=alert"))
	if m == nil {
		t.Fatal("there is no link")
	}
	expect(t, "its page", text(w.page(t, html.UnescapeString(m[1]))), "10.244.15.1:8080")
}

// TestCommand: the command on the page of a Service is one that there is.
func TestCommand(t *testing.T) {
	page := newWorld(t, 3).page(t, "/service?namespace=default&name=web")
	m := regexp.MustCompile(`<code>sluice (connections [^<]*)</code>`).FindStringSubmatch(page)
	if m == nil {
		t.Fatal("there is none")
	}
	c, args, err := cli.Root(nil, io.Discard, io.Discard).Find(strings.Fields(m[1]))
	if err == nil {
		err = c.ParseFlags(args)
	}
	if err == nil {
		err = c.ValidateArgs(c.Flags().Args())
	}
	if err != nil {
		t.Errorf("%s: %v", m[1], err)
	}
}

// TestClasses: each state of an endpoint has a class, and so a symbol.
func TestClasses(t *testing.T) {
	for _, state := range []string{api.Ready, api.NotReady, api.Terminating, api.Ejected, api.CheckFailing,
		api.Maintenance, api.Drained, api.Loop, api.Gone} {
		if class := classes[state]; !strings.Contains(string(icons), `<symbol id="`+class+`"`) {
			t.Errorf("%s has class %q", state, class)
		}
	}
}

// TestAssets: what a page needs is there, of a type that a browser takes, and nothing is from elsewhere.
func TestAssets(t *testing.T) {
	w := newWorld(t, 3)
	found := regexp.MustCompile(`(?:href|src)="(/assets/[^"]*)"`).FindAllStringSubmatch(w.page(t, "/"), -1)
	if len(found) != 2 {
		t.Errorf("the page has %d files", len(found))
	}
	kinds := map[string]string{"js": "text/javascript", "svg": "image/svg+xml"}
	for _, m := range found {
		path := html.UnescapeString(m[1])
		code, header, body := get(t, w.url+path)
		name, _, _ := strings.Cut(path, "?")
		kind := kinds[name[strings.LastIndex(name, ".")+1:]]
		if code != 200 || body == "" || !strings.HasPrefix(header.Get("Content-Type"), kind) {
			t.Errorf("%s = %d %v", path, code, header)
		}
		if strings.Contains(strings.ReplaceAll(body, "http://www.w3.org/", ""), "://") || strings.Contains(body,
			"@import") {
			t.Errorf("%s names another host", path)
		}
	}
}

// TestStyles: every page has the styles in it, which its policy allows by their hash, and nothing else inside it.
func TestStyles(t *testing.T) {
	w := newWorld(t, 3)
	for _, path := range []string{"/", "/events", "/service?namespace=default&name=web", "/service"} {
		_, header, body := get(t, w.url+path)
		m := regexp.MustCompile(`(?s)<style>(.*?)</style>`).FindAllStringSubmatch(body, -1)
		if len(m) != 1 {
			t.Fatalf("%s has %d sheets of styles", path, len(m))
		}
		if strings.Contains(m[0][1], "<") || strings.Contains(m[0][1], "url(") || strings.Contains(m[0][1], "@import") {
			t.Errorf("the styles of %s name others", path)
		}
		sum := sha256.Sum256([]byte(m[0][1]))
		if got, want := header.Get("Content-Security-Policy"), status.Policy("'sha256-"+
			base64.StdEncoding.EncodeToString(sum[:])+"'"); got != want {
			t.Errorf("the policy of %s is %s, want %s", path, got, want)
		}
	}
	if _, header, _ := get(t, w.url+"/v1/status"); header.Get("Content-Security-Policy") != status.Policy("'none'") {
		t.Errorf("the policy of the API is %s", header.Get("Content-Security-Policy"))
	}
}

// TestJSON: the API is at the same address, whole.
func TestJSON(t *testing.T) {
	w := newWorld(t, 3)
	var samples api.List[api.Sample]
	if err := json.Unmarshal([]byte(w.page(t, "/v1/history")), &samples); err != nil || len(samples.Items) != 180 {
		t.Errorf("there are %d samples, %v", len(samples.Items), err)
	}
	if err := json.Unmarshal([]byte(w.page(t, "/v1/history?namespace=default&name=web")), &samples); err != nil ||
		len(samples.Items) != 180 || samples.Items[179].New == 0 {
		t.Errorf("there are %d samples of a Service, %v", len(samples.Items), err)
	}
	if code, _, body := get(t, w.url+"/v1/history?namespace=default&name=none"); code != http.StatusNotFound {
		t.Errorf("a Service that is not there is %d, %s", code, body)
	}
}

// BenchmarkOverview is what the first page of 10,000 Services costs.
func BenchmarkOverview(b *testing.B) {
	w := newWorld(b, 10000)
	h, err := Handler(w.Sources)
	if err != nil {
		b.Fatal(err)
	}
	for _, path := range []string{"/", "/?sort=name&page=50", "/?sort=rate", "/?q=10.96.0.10",
		"/service?namespace=default&name=web"} {
		b.Run(path, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil))
			}
		})
	}
}

// TestConnections: the page of a Service shows some of its connections, and what the kernel counts beside what user
// space does.
func TestConnections(t *testing.T) {
	w := newWorld(t, 3)
	web := w.page(t, "/service?namespace=default&name=web")
	if n := strings.Count(web, `<th scope="row" class="code">192.0.2.`); n != shownConnections {
		t.Errorf("there are %d connections, want %d", n, shownConnections)
	}
	expect(t, "the page of a Service", text(web), "192.0.2.0:4000 10.96.0.10:80 10.244.10.1:8080 established userspace "+
		"1 h 30 min 3 s 1.5 kB 2.5 MB", "The first 50 that were found. All: sluice connections default/web")
	dns := text(w.page(t, "/service?namespace=kube-system&name=kube-dns"))
	expect(t, "the page of one in the kernel", dns, "192.0.2.60:4000 10.96.0.10:80 10.244.10.1:8080 established nftables "+
		"– 3 s – –", "The same on a node: sluice connections kube-system/kube-dns")
	open := regexp.MustCompile(`2 / 2 ([0-9,]+)`).FindStringSubmatch(dns)
	if len(open) < 2 || !strings.HasPrefix(open[1], "7,") && !strings.HasPrefix(open[1], "8,") {
		t.Errorf("open are %q, of which the kernel has 7,777:\n%.3000s", open, dns)
	}
	expect(t, "a Service without", text(w.page(t, "/service?namespace=shop&name=cart")),
		"None is open. sluice connections shop/cart lists them on a node.")
	w.Servers = []api.Server{gone{}}
	expect(t, "while the process hands over", text(w.page(t, "/service?namespace=default&name=web")),
		"They cannot be shown now: the process that was asked has handed over, or ends: ask anew.")
}

// gone is of a process that ends.
type gone struct{}

// Look fails.
func (gone) Look(int, int, *look.Query, func(look.Info) bool) (int, error) { return 0, io.EOF }
