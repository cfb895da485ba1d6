package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// TestNodePortMoves: TCP node ports go to ipvs and back while a program of the node
// listens there and clients ask all the time: each of them is answered, by one or the
// other. A SYN may be lost, and is sent again. Every round takes another port, since what
// drains has a virtual server already.
func TestNodePortMoves(t *testing.T) {
	n := newNode(t, testbed.Config{})
	backends := map[bool][]lb.Backend{false: n.Serving(2, lb.TCP, false, 80), true: n.Serving(2, lb.TCP, true, 80)}
	ports := uint16(12)
	if testing.Short() {
		ports = 4 // in a machine that is interpreted
	}
	for port := uint16(30001); port <= 30000+ports && !t.Failed(); port++ {
		n.moveNodePort(port, backends)
	}
}

// moveNodePort moves one port of both families to ipvs and back, under load.
func (n *node) moveNodePort(port uint16, backends map[bool][]lb.Backend) {
	var services []lb.Service
	var load sync.WaitGroup
	var byPod, byNode atomic.Int64
	ctx, stop := context.WithCancel(n.T.Context())
	defer load.Wait()
	defer stop()
	for _, v6 := range []bool{false, true} {
		at := netip.AddrPortFrom(n.Node.Addr(v6), port)
		s := simple(fmt.Sprint("web-", port), vip(v6, int(port)).String(), 80, lb.TCP, backends[v6]...)
		also(&s, netip.AddrPortFrom(unspecified(v6), port), lb.NodePort, false)
		services = append(services, s)
		serve(n.T, n.Node, lb.TCP, at)
		for _, from := range []*testbed.Host{n.Client, n.Client, n.Node} {
			load.Go(func() {
				for ctx.Err() == nil {
					switch got, err := from.TryAsk("tcp", at.String(), testbed.Patience); {
					case err != nil:
						n.T.Errorf("%s asks %s: %v", from, at, err)
						return
					case strings.HasPrefix(got, "pod-"):
						byPod.Add(1)
					default:
						byNode.Add(1)
					}
				}
			})
		}
	}
	for _, move := range []struct {
		to       *atomic.Int64
		services []lb.Service
	}{{&byNode, nil}, {&byPod, services}, {&byNode, nil}} {
		n.Sync(move.services...)
		before := move.to.Load()
		testbed.Eventually(n.T, "clients get to where the node port is", func() bool {
			return n.T.Failed() || move.to.Load() > before+10
		})
	}
}
