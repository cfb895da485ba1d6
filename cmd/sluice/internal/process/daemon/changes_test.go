package daemon

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kube"
	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/lb"
)

// TestChanges: what the log and the events say of changes.
func TestChanges(t *testing.T) {
	for _, x := range []struct {
		change agent.ServiceChange
		want   string
	}{
		{agent.ServiceChange{Added: true, Ports: 2, PortsChanged: true, Joined: 3, Endpoints: 3, Ready: 2},
			"ServiceAdded false service added ports=2 endpoints=3 ready=2"},
		{agent.ServiceChange{Removed: true, Ports: 2, PortsChanged: true, Left: 3},
			"ServiceRemoved false service removed ports=2"},
		{agent.ServiceChange{Ports: 2, Joined: 2, Left: 1, Endpoints: 5, Ready: 4, WereReady: 4},
			"EndpointsChanged false endpoints changed change=+2 -1 endpoints=5 ready=4"},
		{agent.ServiceChange{Ports: 2, Endpoints: 5, Ready: 4, WereReady: 5},
			"EndpointsChanged false endpoints changed endpoints=5 ready=4"},
		{agent.ServiceChange{Ports: 2, PortsChanged: true, Addresses: true, Policies: true, Endpoints: 1, Ready: 1},
			"ServiceChanged false service changed ports=2 addresses=changed policies=changed endpoints=1 ready=1"},
		{agent.ServiceChange{Ports: 1, Left: 1, LostEndpoints: true},
			"NoEndpoints true service has no endpoint any more change=+0 -1 endpoints=0 ready=0"},
	} {
		x.change.Service = lb.Name{Namespace: "default", Name: "web"}
		c := changesOf([]agent.ServiceChange{x.change})[0]
		got := fmt.Sprint(c.Reason, " ", c.Warning, " ", c.Message)
		for _, d := range c.Details {
			got += fmt.Sprintf(" %s=%v", d.Key, d.Value)
		}
		if got != x.want || c.Namespace != "default" || !strings.Contains(c.Service, "web") {
			t.Errorf("%+v is %q, want %q", x.change, got, x.want)
		}
	}
}

// TestLeaving: a Service that waits for a finalizer is known to go, from what is kept of it.
func TestLeaving(t *testing.T) {
	service := func(name string, deleted *metav1.Time) *corev1.Service {
		return kube.TrimService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
			DeletionTimestamp: deleted}})
	}
	var o objects
	if o.leaving("default", "stays") {
		t.Error("leaving before anything was read")
	}
	o.Store(&kube.Objects{Services: lists.Of([]*corev1.Service{service("stays", nil),
		service("goes", &metav1.Time{Time: time.Now()})})})
	for name, want := range map[string]bool{"stays": false, "goes": true, "gone": false} {
		if got := o.leaving("default", name); got != want {
			t.Errorf("%s is leaving: %v, want %v", name, got, want)
		}
	}
}
