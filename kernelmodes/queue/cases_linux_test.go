package queue

import (
	"testing"

	"github.com/sluice-lb/sluice/kernelmodes/lab"
)

// TestKubeProxyCases: what becomes of packets is what kube-proxy's own tests want, with a process that chooses.
func TestKubeProxyCases(t *testing.T) {
	t.Parallel()
	var last *Server
	t.Cleanup(func() {
		if last != nil {
			_ = last.Close()
		}
	})
	lab.KubeProxyCases(t, true, func(s lab.Setup) lab.Engine {
		if !s.IPv6 { // the first of two
			if last != nil {
				_ = last.Close()
			}
			s.Node.DoT(t, func() error {
				last = newServer(Mask)
				return last.Start()
			})
		}
		e := last.Engines[0]
		if s.IPv6 {
			e = last.Engines[1]
		}
		e.MasqueradeAll = s.All
		return engine{last, e}
	})
}
