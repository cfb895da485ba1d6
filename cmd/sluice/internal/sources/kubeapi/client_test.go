package kubeapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	componentconfig "k8s.io/component-base/config/v1alpha1"
	"k8s.io/klog/v2"
)

func TestRESTConfig(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		check(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	good := write("good", "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: https://192.0.2.1:6443}}]\n"+
		"users: [{name: u, user: {tokenFile: "+filepath.Join(dir, "token")+"}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n")
	write("token", "secret")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for name, test := range map[string]struct {
		kubeconfig, master string
		host               string
		wrong              []string
	}{
		"kubeconfig":             {kubeconfig: good, host: "https://192.0.2.1:6443"},
		"master":                 {master: "https://192.0.2.9:6443", host: "https://192.0.2.9:6443"},
		"master over kubeconfig": {kubeconfig: good, master: "https://192.0.2.9:6443", host: "https://192.0.2.9:6443"},
		"no file":                {kubeconfig: filepath.Join(dir, "none"), wrong: []string{"--kubeconfig", "none", "no such file", "kubectl"}},
		"no kubeconfig":          {kubeconfig: write("bad", "}{"), wrong: []string{"--kubeconfig", "bad"}},
		"an empty one":           {kubeconfig: write("empty", "apiVersion: v1\nkind: Config\n"), wrong: []string{"--kubeconfig", "empty"}},
		"no URL":                 {master: "::::", wrong: []string{"::::", "--master", "https://192.0.2.1:6443"}},
		"no scheme of HTTP":      {master: "ftp://192.0.2.9", wrong: []string{"ftp://192.0.2.9", "--master", "https://192.0.2.1:6443"}},
		"nothing, in no pod":     {wrong: []string{"--kubeconfig", "--manifests", "pod"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := RESTConfig(componentconfig.ClientConnectionConfiguration{Kubeconfig: test.kubeconfig,
				ContentType: "application/vnd.kubernetes.protobuf", QPS: 7, Burst: 9}, test.master)
			if test.wrong == nil {
				check(t, err)
				if c.Host != test.host || c.QPS != 7 || c.Burst != 9 || c.AcceptContentTypes != "application/vnd.kubernetes.protobuf,application/json" {
					t.Errorf("got %v, want host %s and the settings", c, test.host)
				}
				return
			}
			for _, part := range test.wrong {
				if err == nil || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") {
					t.Errorf("got %v, want one line with %q", err, part)
				}
			}
		})
	}
}

// TestTroubles holds what an operator reads of each trouble, and how often.
func TestTroubles(t *testing.T) {
	services := schema.GroupResource{Resource: "services"}
	dial := &url.Error{Op: "Get", URL: "https://192.0.2.1", Err: syscall.ECONNREFUSED}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"forbidden":    {apierrors.NewForbidden(services, "", errors.New("no role")), "does not let us list services: bind the ClusterRole"},
		"unauthorized": {apierrors.NewUnauthorized("expired"), "credentials: renew"},
		"too old":      {apierrors.NewNotFound(services, ""), "1.21 or later"},
		"away":         {dial, "cannot be reached"},
		"no such name": {&url.Error{Op: "Get", URL: "http://foo", Err: &net.OpError{Op: "dial", Err: &net.DNSError{Name: "foo", Err: "no such host"}}}, `the name "foo" of the API server cannot be resolved`},
		"starting":     {apierrors.NewServiceUnavailable("etcd"), "cannot be reached"},
		"busy":         {apierrors.NewTooManyRequests("storage", 1), "cannot be reached or is not ready"},
		"other":        {errors.New("boom"), "cannot list services"},
		"expired":      {apierrors.NewResourceExpired("old"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			core, logs := observer.New(zapcore.InfoLevel)
			var reported []string
			tr := troubles{log: zap.New(core), report: func(sentence string) { reported = append(reported, sentence) }}
			for range 3 {
				tr.note(t.Context(), "list", "services", test.err)
			}
			if last, trouble := tr.contact(); !last.IsZero() || !strings.Contains(trouble, test.want) {
				t.Errorf("contact %v, %q", last, trouble)
			}
			want := 1
			if test.want == "" {
				want = 0
			}
			if logs.Len() != want || want == 1 && !strings.Contains(logs.All()[0].Message, test.want) {
				t.Fatalf("logged %v, want %q %d times", logs.All(), test.want, want)
			}
			tr.note(t.Context(), "list", "services", nil)
			tr.note(t.Context(), "watch", "services", nil)
			if over := logs.FilterMessageSnippet("answers again").Len(); over != want {
				t.Errorf("logged %d times that it is over, want %d", over, want)
			}
			if last, trouble := tr.contact(); last.IsZero() || trouble != "" {
				t.Errorf("contact %v, %q after an answer", last, trouble)
			}
			if len(reported) != 2*want || want == 1 && (!strings.Contains(reported[0], test.want) ||
				reported[1] != "") {
				t.Errorf("reported %q", reported)
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			tr.note(ended, "list", "services", dial)
			if last := logs.FilterMessageSnippet("cannot be reached").Len(); want == 0 && last != 0 {
				t.Error("logged a trouble that the end of the program made")
			}
		})
	}
}

// TestPlainHTTP: what a server of HTTPS says to who asks it by HTTP is understood.
func TestPlainHTTP(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	clients, err := newClients(&rest.Config{Host: "http://" + server.Listener.Addr().String()})
	check(t, err)
	err = clients.core.Get().Resource("services").Do(t.Context()).Error()
	if got := describe("list", "services", err); !strings.Contains(got, "begins with https://") {
		t.Errorf("%q of %v", got, err)
	}
}

// TestFlapping holds that a server that fails in turn in several ways is told of once
// for each, and that a server that has just started is not blamed for its roles.
func TestFlapping(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	tr := troubles{log: zap.New(core)}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "", errors.New("no role"))
	tr.note(t.Context(), "list", "services", forbidden)
	tr.note(t.Context(), "list", "services", nil)
	if logs.Len() != 0 {
		t.Errorf("forbidden once, logged %v", logs.All())
	}
	for range 10 {
		for _, err := range []error{&url.Error{Op: "Get", Err: syscall.ECONNREFUSED}, errors.New("boom"), forbidden} {
			tr.note(t.Context(), "list", "services", err)
			tr.note(t.Context(), "list", "nodes", err)
		}
	}
	tr.note(t.Context(), "list", "services", nil)
	if got := logs.FilterLevelExact(zapcore.ErrorLevel).Len(); got != 3 || logs.Len() != 3 { // cannot be reached, and boom of each
		t.Errorf("logged %v, want three sentences", logs.All())
	}
	tr.note(t.Context(), "list", "nodes", nil)
	if logs.Len() != 4 {
		t.Errorf("logged %v, want that it is over", logs.All())
	}
}

// TestCertificates holds that certificates are told apart from a server that is away.
func TestCertificates(t *testing.T) {
	_, err := New(Config{Connection: &rest.Config{Host: "https://192.0.2.1", TLSClientConfig: rest.TLSClientConfig{CAFile: "none"}}, Log: zap.NewNop()})
	if err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("a certificate authority that is not there: %v", err)
	}
}

// TestLogTo holds that nothing that uses klog writes lines of its own.
func TestLogTo(t *testing.T) {
	core, logs := observer.New(zapcore.DebugLevel)
	LogTo(zap.New(core))
	t.Cleanup(klog.ClearLogger)
	var stray bytes.Buffer
	klog.SetOutput(&stray)
	klog.InfoS("of client-go", "key", "value")
	klog.ErrorS(errors.New("cause"), "wrong", "odd")
	klog.Flush()
	if stray.Len() != 0 || logs.Len() != 2 {
		t.Fatalf("klog wrote %q, the log has %v", stray.String(), logs.All())
	}
	if e := logs.All()[0]; e.Level != zapcore.DebugLevel || e.ContextMap()["key"] != "value" {
		t.Errorf("got %v, want it as debugging", e)
	}
	if e := logs.All()[1]; e.Level != zapcore.WarnLevel || e.ContextMap()["error"] != "cause" {
		t.Errorf("got %v, want a warning", e)
	}
}
