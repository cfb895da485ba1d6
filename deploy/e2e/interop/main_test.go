package interop

import (
	"context"
	"flag"
	"os"
	"syscall"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

var sluice = flag.String("sluice", "../../../bin/sluice", "`PATH` of the program to test")

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// cluster is the hosts of a test, with Sluice on their node.
type cluster struct {
	*testbed.Testbed
	t   *testing.T
	dir string // of manifests
}

func newCluster(t *testing.T, cfg testbed.Config) *cluster {
	t.Helper()
	return &cluster{testbed.NewT(t, cfg), t, t.TempDir()}
}

// start runs Sluice until the end of the test, and returns when it is healthy.
func (c *cluster) start() {
	c.t.Helper()
	var log testbed.Buffer
	cmd := c.Node.Command(context.Background(), *sluice, "--manifests", c.dir)
	cmd.Stdout, cmd.Stderr = &log, &log
	p, err := cmd.Launch()
	testbed.Check(c.t, err)
	c.t.Cleanup(func() {
		p.Stop(syscall.SIGTERM)
		if c.t.Failed() {
			c.t.Logf("sluice's log:\n%s", log.String())
		}
	})
	testbed.Check(c.t, p.Healthy(c.t.Context(), testbed.HealthURL))
}

// metric returns the value of a series, named as /metrics writes it.
func (c *cluster) metric(series string) float64 {
	c.t.Helper()
	_, page := c.Node.Page(testbed.MetricsURL)
	return testbed.Metric(c.t, page, series)
}

// publish writes a Service of one UDP port of all pods.
func (c *cluster) publish(name, addr string, port int) {
	c.t.Helper()
	testbed.Check(c.t, testbed.WriteManifest(c.dir, name+".yaml", testbed.ServiceManifest(name, addr, "UDP", ""),
		testbed.SliceManifest(name, 1, port, "UDP", testbed.Addrs(c.Pods...)...)))
}
