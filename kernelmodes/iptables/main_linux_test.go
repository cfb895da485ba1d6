package iptables

import (
	"os"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
)

// What the tests name most.
var (
	ip, at, anywhere     = lab.IP, lab.At, lab.Anywhere
	plain, podNet, whole = lab.Plain, lab.PodNet, lab.Whole
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

func engineOf(v testbed.IPTables) *Engine { return &Engine{IPv6: v.IPv6, Command: v.Command()} }

// save returns what iptables-save says on a host.
func save(t testing.TB, h *testbed.Host, v testbed.IPTables) string {
	t.Helper()
	return shell(t, h, v.Command()+"-save")
}

// shell runs a command on a host and returns what it prints.
func shell(t testing.TB, h *testbed.Host, command string) string {
	t.Helper()
	return h.Run(t, "sh", "-c", command)
}
