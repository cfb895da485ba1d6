package soak

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestLoopByWayOfAnotherNode: a Service whose endpoint is the other node's node port, where it is the same the other
// way round, goes round until its share is used up. Nothing in a table says so. Other Services of both nodes are served
// meanwhile, and what has gone round is gone soon after the clients.
func TestLoopByWayOfAnotherNode(t *testing.T) {
	const loopPort, webPort, descriptors = 30999, 30080, 3000
	near := lab.New(t, testbed.Config{Pods: 1, RemotePods: 1})
	far := near.Remote()
	ends := testbed.NewSCTPEnds(t)
	for _, l := range []*lab.Lab{near, far} {
		testbed.Keep(t)(l.Pods[0].WhoTCP(":8080"))
		l.Write("web.yaml", testbed.ServiceManifest("web", lab.WebAddr, "TCP", nodePort(webPort)),
			testbed.SliceManifest("web", 1, 8080, "TCP", l.Pods[0].Addr4.String()))
		for i, protocol := range []string{"TCP", "SCTP"} {
			name := "loop-" + strings.ToLower(protocol)
			l.Write(name+".yaml", testbed.ServiceManifest(name, fmt.Sprintf("10.96.9.%d:80", i), protocol, nodePort(loopPort)),
				testbed.SliceManifest(name, 1, loopPort, protocol, l.RemoteNode.Addr4.String()))
		}
		l.Limit = descriptors
		l.Start("--metrics-service-families=all")
	}
	into := netip.AddrPortFrom(near.Node.Addr4, loopPort)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer func() {
		cancel()
		wg.Wait()
	}()
	wg.Go(func() {
		if err := (knock{To: into, Rate: 20, Hold: time.Second}).run(ctx, near.Client); err != nil {
			t.Error(err)
		}
	})
	client, err := ends.Open(near.Client, into)
	testbed.Check(t, err)
	defer client.Abandon()
	near.Eventually("SCTP goes round", func() bool {
		return near.Metric(`sluice_dialling_connections{protocol="SCTP"}`) > 2
	})
	near.Eventually("the loop has its share", func() bool {
		return near.Metric(`sluice_service_over_share_total{protocol="TCP",service_name="loop-tcp",`+
			`service_namespace="default",service_port=""}`) > 0
	})
	for asked := range 300 {
		for _, l := range []*lab.Lab{near, far} {
			who, err := near.Client.TryAsk("tcp", fmt.Sprintf("%s:%d", l.Node.Addr4, webPort), patience)
			if err != nil || who != l.Pods[0].Name {
				t.Fatalf("question %d to %s: answer %q, %v", asked, l.Node, who, err)
			}
		}
	}
	cancel()
	wg.Wait()
	for _, l := range []*lab.Lab{near, far} {
		if n := l.Metric(`sluice_active_connections{protocol="TCP"}`); n > descriptors/2 {
			t.Errorf("%v TCP connections are open", n)
		}
		l.Eventually("the loops are over", func() bool {
			return l.Metric(`sluice_active_connections{protocol="TCP"}`) == 0 && l.Metric(`sluice_dialling_connections{protocol="SCTP"}`) == 0
		})
	}
}

// nodePort is what a manifest of a Service has for it.
func nodePort(port int) string { return fmt.Sprintf("    nodePort: %d\n  type: NodePort\n", port) }
