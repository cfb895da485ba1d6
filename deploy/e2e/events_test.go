package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// event waits for an Event of a reason about an object that is newer than since.
func (l *lab) event(namespace, kind, name, reason string, since time.Time) (found eventsv1.Event) {
	l.t.Helper()
	l.eventually("event "+reason+" of "+kind+" "+name, func() bool {
		list, err := l.admin.EventsV1().Events(namespace).List(l.ctx, metav1.ListOptions{})
		l.check(err)
		for _, e := range list.Items {
			if e.Reason == reason && e.Regarding.Kind == kind && e.Regarding.Name == name && e.EventTime.After(since) {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// TestEvents: what people see by kubectl describe, written with the shipped rights only.
func TestEvents(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods[0])
	begin := time.Now().Add(-time.Second) // times of Events are in microseconds
	squatter, err := l.Node.Listen(l.ctx, "tcp4", "0.0.0.0:30777")
	l.check(err)
	defer func() { _ = squatter.Close() }() // the last one, which nothing else keeps from being collected, and closed
	l.apply(service("web", "type: NodePort, ports: [{port: 80, nodePort: 30777}]"), slice("web", 1, 8080, "TCP", l.Pods[0]))
	l.start()
	l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[0])
	if e := l.event(metav1.NamespaceDefault, "Node", "node", "Starting", begin); e.Type != "Normal" || e.ReportingController != "sluice" {
		t.Errorf("Starting = %+v", e)
	}
	e := l.event(l.namespace, "Service", "web", "PortAlreadyClaimed", begin)
	if e.Type != "Warning" || e.Regarding.UID != l.service("web").UID || !strings.Contains(e.Note, "node node cannot hold port 30777 of "+l.namespace+"/web") {
		t.Errorf("PortAlreadyClaimed = %+v", e)
	}
	squatter.Close()
	l.event(l.namespace, "Service", "web", "PortReleased", begin)
	l.expect(l.Client, "tcp", l.Node.Addr4.String()+":30777", l.Pods[0])

	// The same again is the same object, that counts.
	l.apply(service("web", "ports: [{port: 80}]"))
	l.eventually("the node port is free", func() bool {
		squatter, err = l.Node.Listen(l.ctx, "tcp4", "0.0.0.0:30777")
		return err == nil
	})
	l.apply(service("web", "type: NodePort, ports: [{port: 80, nodePort: 30777}]"))
	l.eventually("the event is counted", func() bool {
		e := l.event(l.namespace, "Service", "web", "PortAlreadyClaimed", begin)
		return e.Series != nil && e.Series.Count == 2
	})
	if n := l.metric(`sluice_dropped_records_total{kind="event"}`); n != 0 {
		t.Errorf("%v events dropped", n)
	}
}

// TestNodeLeaves: a node that the autoscaler is about to delete is one that load
// balancers shall leave, and the kubelet shall not restart anything on.
func TestNodeLeaves(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods[0])
	l.apply(service("web", "ports: [{port: 80}]"), slice("web", 1, 8080, "TCP", l.Pods[0]))
	l.start()
	taint := func(taints ...corev1.Taint) {
		t.Helper()
		node, err := l.admin.CoreV1().Nodes().Get(l.ctx, "node", metav1.GetOptions{})
		l.check(err)
		node.Spec.Taints = taints
		_, err = l.admin.CoreV1().Nodes().Update(l.ctx, node, metav1.UpdateOptions{})
		l.check(err)
	}
	defer taint()
	probe := func(path string) int { code, _ := l.Node.Page("http://127.0.0.1:10256" + path); return code }
	taint(corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule})
	l.eventually("/healthz fails", func() bool { return probe("/healthz") == http.StatusServiceUnavailable })
	if code := probe("/livez"); code != http.StatusOK {
		t.Errorf("/livez = %d", code)
	}
	l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[0])
	taint()
	l.eventually("/healthz succeeds again", func() bool { return probe("/healthz") == http.StatusOK })
}

// TestKubeProxyMetrics: series that need an API server have values.
func TestKubeProxyMetrics(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods...)
	l.apply(service("web", "ports: [{port: 80}]"), slice("web", 1, 8080, "TCP", l.Pods[0]))
	l.start()
	l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[0])
	const programming = `kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"}`
	before := l.metric(programming)
	l.apply(triggered(slice("web", 1, 8080, "TCP", l.Pods[1]), time.Now()))
	l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[1])
	l.eventually("the change is counted", func() bool { return l.metric(programming) == before+1 })
	for _, series := range []string{
		"kubeproxy_sync_proxy_rules_service_changes_total", "kubeproxy_sync_proxy_rules_endpoint_changes_total",
		`kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"}`,
	} {
		if l.metric(series) == 0 {
			t.Errorf("%s is 0", series)
		}
	}
	_, page := l.Node.Page(testbed.MetricsURL)
	if !strings.Contains(page, `rest_client_requests_total{code="200",host="`) {
		t.Error("requests to the API server are not counted")
	}
}

// triggered notes in a slice, as the slice controller does, when its pods changed.
func triggered(slice string, at time.Time) string {
	const meta = "metadata: {"
	return strings.Replace(slice, meta, meta+"annotations: {"+corev1.EndpointsLastChangeTriggerTime+": \""+at.Format(time.RFC3339Nano)+"\"}, ", 1)
}
