package kubeapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"go.uber.org/zap"
	componentconfig "k8s.io/component-base/config/v1alpha1"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kube"
)

// TestRequests holds what is asked of a server: in protobuf, with the labels and fields
// by which kube-proxy asks, and nothing else. That servers understand it is for
// deploy/e2e to show.
func TestRequests(t *testing.T) {
	for _, test := range []struct{ proxyName, services, contentType, accept string }{
		{"", "!service.kubernetes.io/service-proxy-name", "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf"},
		{"mine", "service.kubernetes.io/service-proxy-name=mine", "application/json", "application/json"},
	} {
		asked := make(chan *http.Request, 100)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case asked <- r:
			default: // there are enough
			}
			http.Error(w, "not here", http.StatusServiceUnavailable)
		}))
		connection, err := RESTConfig(componentconfig.ClientConnectionConfiguration{ContentType: test.contentType}, server.URL)
		check(t, err)
		w, err := New(Config{Connection: connection, NodeName: "here", ServiceProxyName: test.proxyName, Log: zap.NewNop()})
		check(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { w.Run(ctx, func(kube.Objects) {}); close(ended) }()
		want := map[string]url.Values{
			"/api/v1/services": {"labelSelector": {test.services}},
			"/api/v1/nodes":    {"fieldSelector": {"metadata.name=here"}},
			"/apis/discovery.k8s.io/v1/endpointslices": {"labelSelector": {"!service.kubernetes.io/headless"}},
			"/apis/networking.k8s.io/v1/servicecidrs":  {},
		}
		missing := map[string]bool{}
		for path := range want {
			missing[path] = true
		}
		for len(missing) > 0 {
			r := <-asked
			selectors, ok := want[r.URL.Path]
			if !ok || r.Method != http.MethodGet {
				t.Fatalf("asked for %s %s", r.Method, r.URL)
			}
			delete(missing, r.URL.Path)
			got := r.URL.Query()
			for _, name := range []string{"labelSelector", "fieldSelector"} {
				if got.Get(name) != selectors.Get(name) {
					t.Errorf("%s: %s is %q, want %q", r.URL.Path, name, got.Get(name), selectors.Get(name))
				}
			}
			if accept := r.Header.Get("Accept"); !strings.HasPrefix(accept, test.accept) {
				t.Errorf("%s: asks for %q, want %s first", r.URL.Path, accept, test.accept)
			}
		}
		cancel()
		<-ended
		server.Close()
	}
}
