package nftables

import (
	"os"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// node is a host that forwards by nftables, with an engine for each family.
type node struct {
	*lab.Lab
	engines [2]*Engine
}

func newNode(t *testing.T, cfg testbed.Config) *node {
	t.Helper()
	n := &node{engines: [2]*Engine{{}, {IPv6: true}}}
	n.Lab = lab.New(t, cfg, func(family int) lab.Engine { return n.engines[family] })
	return n
}

// list is what nft says of our tables.
func (n *node) list() string {
	n.T.Helper()
	return n.Node.Run(n.T, "nft", "list", "ruleset")
}

func TestMatrix(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{RemotePods: 1})
	n.Matrix(func() { t.Log(n.list()) })
	if !n.Verify() {
		t.Error("Verify finds something out of place")
	}
}
