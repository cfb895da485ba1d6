package udp

import (
	"os"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// lab is a node with a pod. The node is the host of this process: a Server opens sockets on goroutines of its own.
type lab struct {
	*testbed.Testbed
	t *testing.T
}

// Addresses of the node towards its pods, and of the pod, for any port.
const (
	onNode = "10.244.1.1:0"
	onPod  = "10.244.1.10:0"
)

func newLab(t *testing.T) *lab {
	t.Helper()
	return &lab{testbed.NewT(t, testbed.Config{Pods: 1, Here: true}), t}
}

// inPod returns what f makes in the pod: sockets stay there.
func inPod[T any](l *lab, f func() T) (made T) {
	l.t.Helper()
	l.Pods[0].DoT(l.t, func() error { made = f(); return nil })
	return made
}

// sysctl sets an option of this process's host until the test ends.
func sysctl(t *testing.T, key, value string) {
	t.Helper()
	testbed.HereT(t).SysctlT(t, key, value)
}
