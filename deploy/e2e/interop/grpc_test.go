package interop

import (
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestGRPCHealth: active checks ask the health service of grpc-go, which is a status for each name and may change at
// any time.
func TestGRPCHealth(t *testing.T) {
	c := newCluster(t, testbed.Config{Pods: 2})
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait)
	status := make([]*health.Server, len(c.Pods))
	for i, pod := range c.Pods {
		ln, err := pod.Listen(t.Context(), "tcp4", ":8080")
		testbed.Check(t, err)
		server := grpc.NewServer()
		status[i] = health.NewServer()
		healthv1.RegisterHealthServer(server, status[i])
		serving.Go(func() { _ = server.Serve(ln) }) // until Stop
		t.Cleanup(server.Stop)
	}
	publish := func(service string) {
		t.Helper()
		annotation := fmt.Sprintf("sluice.io/readiness-probe: "+
			"'{grpc: {port: 8080, service: %q}, periodSeconds: 1, failureThreshold: 1}'", service)
		testbed.Check(t, testbed.WriteManifest(c.dir, "web.yaml",
			testbed.Annotated(testbed.ServiceManifest("web", "10.96.0.80:80", "TCP", ""), annotation),
			testbed.SliceManifest("web", 1, 8080, "TCP", testbed.Addrs(c.Pods...)...)))
	}
	publish("")
	c.start()
	failing := func(what string, want float64) {
		t.Helper()
		testbed.Eventually(t, what, func() bool {
			return c.metric(`sluice_endpoints_excluded{reason="failing_probe"}`) == want
		})
	}
	failing("both serve", 0)
	status[0].SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING)
	failing("one does not", 1)
	for range 10 {
		conn, err := c.Client.Dial(t.Context(), "tcp", "10.96.0.80:80")
		testbed.Check(t, err)
		_ = conn.Close()
	}
	status[0].SetServingStatus("", healthv1.HealthCheckResponse_SERVING)
	failing("it does again", 0)

	// A name that a server does not know is the status NOT_FOUND, which is in the header of an answer without a body.
	status[1].SetServingStatus("db", healthv1.HealthCheckResponse_SERVING)
	publish("db")
	failing("one has it not", 1)
	status[0].SetServingStatus("db", healthv1.HealthCheckResponse_SERVING)
	failing("both have it", 0)
}
