package ipvs

import (
	"errors"
	"os"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// node is a host that forwards by ipvs, with an engine for each family.
type node struct {
	*lab.Lab
	engines [2]*Engine
}

// newNode builds the hosts, and skips, or fails, where there is no ip_vs.
func newNode(t *testing.T, cfg testbed.Config) *node {
	t.Helper()
	n := &node{engines: [2]*Engine{{}, {IPv6: true}}}
	n.Lab = lab.New(t, cfg, func(family int) lab.Engine { return n.engines[family] })
	n.Node.DoT(t, func() error {
		err := n.engines[0].Probe(t.Context())
		if errors.Is(err, errors.ErrUnsupported) {
			testbed.MissingUnless(t, testbed.RequireIPVSVar, err.Error()+"; make test-vm tests it")
		}
		return err
	})
	return n
}

// What the tests name most.
var (
	serve, ask, askFor, id, backend = lab.Serve, lab.Ask, lab.AskFor, lab.ID, lab.Backend
	also, simple, whole             = lab.Also, lab.Simple, lab.Whole
	vip, unspecified, family        = testbed.VIP, testbed.Unspecified, testbed.Family
)

const listRoutes = "ip route show table local proto 83"

// routes lists those of addresses of Services.
func (n *node) routes() string {
	return n.Node.Run(n.T, "sh", "-c", listRoutes+"; ip -6"+listRoutes[2:])
}

func TestMatrix(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{RemotePods: 1})
	n.Matrix(func() {
		for _, command := range []string{"ipvsadm -ln", "ip addr", "iptables-save"} {
			t.Log(n.Node.Run(t, "sh", "-c", command))
		}
	})
}
