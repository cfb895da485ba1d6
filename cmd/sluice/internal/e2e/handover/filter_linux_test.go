package handover

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestPacketFilterChanges: successors steer by the other packet filter, there and back, and nothing is lost.
func TestPacketFilterChanges(t *testing.T) {
	n := newLine(t, testbed.Config{})
	l := newLoad(n.Lab)
	args := []string{"--pid-file", n.pidFile, "--handover-socket", n.socket, "--udp-timeout", flowTimeout.String(),
		"--packet-filter"}
	n.Lab.Start(append(args, "iptables")...)
	n.Eventually("the program can be upgraded", func() bool { return n.pid() != 0 })
	const flows, times = 10, 4
	l.begin(50, flows)
	for i := range times {
		filter, table := "iptables", false
		if i%2 == 0 {
			filter, table = "nftables", true
		}
		before := n.pid()
		n.Launch(n.Command(append([]string{"--manifests", n.Dir}, append(args, filter)...)...))
		n.Eventually("the successor serves", func() bool { return n.pid() != before && slices.Equal(n.Processes(), []int{n.pid()}) })
		n.Eventually("what steered before is gone", func() bool {
			save, err := n.Node.Command(t.Context(), "iptables-save", "-t", "nat").Output() // it fails while a set goes
			jumps := strings.Contains(string(save), "-j SLUICE-STEER")
			return err == nil && jumps != table && strings.Contains(n.Output("nft", "list", "tables"), "sluice-steering") == table
		})
		if got := n.Metric(`sluice_setting_info{reason="requested",setting="packet_filter",value="` + filter + `"}`); got != 1 {
			t.Errorf("%s is not said to steer", filter)
		}
	}
	l.endWell(flows)
}
