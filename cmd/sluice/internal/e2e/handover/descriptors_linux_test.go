package handover

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestSocketsOfFewDescriptors: with 256 descriptors, a Service of 300 UDP ports, each of which wants a socket for each
// loop, leaves some for others that come later, TCP and UDP, and for the rules that lead to them; and so it does after
// a hand-over.
func TestSocketsOfFewDescriptors(t *testing.T) {
	t.Parallel()
	const most = 300
	n := newLine(t, testbed.Config{Pods: 1})
	n.ServeDNS()
	service, slice := testbed.ManyPorts("many", "10.96.9.1", "UDP", most, 5353, n.Pods[0].Addr4.String())
	n.Write("many.yaml", service, slice)
	n.Limit = 256
	n.start("--loops", "2")
	for _, want := range []string{"PortsNotServed", "default/many"} {
		if out := n.logged(); !strings.Contains(out, want) {
			t.Errorf("the log does not have %s", want)
		}
	}
	short := n.Metric("sluice_ports_without_socket")
	if short < most/3 {
		t.Errorf("%v ports are without a socket, want more than a third of %d", short, most)
	}
	served := func(when string) {
		t.Helper()
		n.Eventually("UDP is served "+when, func() bool {
			who, err := n.Client.TryAsk("udp", "10.96.0.83:53", testbed.Patience/20)
			return err == nil && who == n.Pods[0].Name
		})
		for i := range 5 {
			if who, err := n.Client.Who(lab.WebAddr); err != nil || who != n.Pods[0].Name {
				t.Fatalf("question %d by TCP %s: answer %q, %v", i, when, who, err)
			}
		}
	}
	n.ServeWeb()
	n.Write("late.yaml", testbed.ServiceManifest("late", "10.96.0.83:53", "UDP", ""),
		testbed.SliceManifest("late", 1, 5353, "UDP", n.Pods[0].Addr4.String()))
	n.Eventually("TCP is served", func() bool {
		_, err := n.Client.TryAsk("tcp", lab.WebAddr, testbed.Patience/20)
		return err == nil
	})
	served("beside many ports")
	short = n.Metric("sluice_ports_without_socket")
	n.mustUpgrade()
	served("after a hand-over")
	n.Eventually("as many ports are without a socket", func() bool {
		return n.Metric("sluice_ports_without_socket") == short
	})
	testbed.Check(t, os.Remove(filepath.Join(n.Dir, "many.yaml")))
	n.Eventually("all ports are served", func() bool { return n.Metric("sluice_ports_without_socket") == 0 })
	n.Eventually("that is reported", func() bool { return strings.Contains(n.logged(), "PortsServed") })
	served("without it")
}
