package kubeapi

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"
	componentconfig "k8s.io/component-base/config/v1alpha1"
)

// networking is a server of ServiceCIDRs, in one version of the API at a time.
type networking struct {
	*httptest.Server
	version atomic.Pointer[string] // that is served; empty: none
	cidr    atomic.Pointer[string]
	watches chan struct{} // one for each that the client opens
}

func newNetworking(t *testing.T) *networking {
	n := &networking{watches: make(chan struct{}, 100)}
	n.Server = httptest.NewServer(n)
	t.Cleanup(n.Close)
	return n
}

// become makes it serve another version, with one ServiceCIDR, as after an upgrade: watches end.
func (n *networking) become(version, cidr string) {
	n.version.Store(&version)
	n.cidr.Store(&cidr)
	n.CloseClientConnections()
}

func (n *networking) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	version, cidr, query := *n.version.Load(), *n.cidr.Load(), r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.URL.Path != "/apis/networking.k8s.io/"+version+"/servicecidrs":
		w.WriteHeader(http.StatusNotFound)
	case query.Get("sendInitialEvents") != "":
		w.WriteHeader(http.StatusUnprocessableEntity) // as servers before 1.32
	case query.Get("watch") != "":
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		n.watches <- struct{}{}
		<-r.Context().Done()
	default:
		fmt.Fprintf(w, `{"kind":"ServiceCIDRList","apiVersion":"networking.k8s.io/%s","metadata":{"resourceVersion":"7"},`+
			`"items":[{"metadata":{"name":"kubernetes"},"spec":{"cidrs":[%q]}}]}`, version, cidr)
	}
}

// TestCIDRVersions: when the API server serves another version of ServiceCIDRs, or none any more, that is followed.
func TestCIDRVersions(t *testing.T) {
	server := newNetworking(t)
	server.become("v1beta1", "10.96.0.0/16")
	connection, err := RESTConfig(componentconfig.ClientConnectionConfiguration{ContentType: "application/json"}, server.URL)
	check(t, err)
	w, err := New(Config{Connection: connection, NodeName: "here", Log: zap.NewNop()})
	check(t, err)
	ended := make(chan struct{})
	go func() { w.followCIDRs(t.Context()); close(ended) }()
	t.Cleanup(func() { <-ended })
	for _, step := range []struct{ version, cidr string }{
		{"v1beta1", "10.96.0.0/16"}, {"v1", "10.97.0.0/16"}, {"v1beta1", "10.98.0.0/16"}, {"", ""},
	} {
		server.become(step.version, step.cidr)
		for have := "?"; have != step.cidr; {
			<-w.dirty
			var list []string
			o, _ := w.objects()
			for _, c := range o.ServiceCIDRs {
				list = append(list, c.Spec.CIDRs...)
			}
			have = strings.Join(list, " ")
		}
		if step.version != "" {
			<-server.watches
		}
	}
}
