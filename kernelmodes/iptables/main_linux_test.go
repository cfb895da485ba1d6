package iptables

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// variant is one backend of iptables in one family.
type variant struct {
	ipv6   bool
	legacy bool
}

func (v variant) command() string {
	c := "iptables"
	if v.ipv6 {
		c = "ip6tables"
	}
	if v.legacy {
		return c + "-legacy"
	}
	return c + "-nft"
}

func (v variant) engine() *Engine { return &Engine{IPv6: v.ipv6, Command: v.command()} }

// eachVariant runs a test with each, on a host of its own.
func eachVariant(t *testing.T, f func(*testing.T, *testbed.Host, variant)) {
	for _, v := range []variant{{false, false}, {true, false}, {false, true}, {true, true}} {
		t.Run(v.command(), func(t *testing.T) {
			tb := testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1})
			if _, err := exec.LookPath(v.command()); err != nil {
				testbed.Missing(t, err.Error())
			}
			f(t, tb.Node, v)
		})
	}
}

// wrapped writes programs that run those of a variant after a piece of shell, and returns
// the name of the first.
func wrapped(t testing.TB, dir string, v variant, before string) string {
	t.Helper()
	for _, suffix := range []string{"", "-save", "-restore"} {
		testbed.WriteScript(t, filepath.Join(dir, "ipt"+suffix),
			fmt.Sprintf("%s\nexec %s%s \"$@\"\n", before, v.command(), suffix))
	}
	return filepath.Join(dir, "ipt")
}

// save returns what iptables-save says on a host.
func save(t testing.TB, h *testbed.Host, v variant) string {
	t.Helper()
	return shell(t, h, v.command()+"-save")
}

// shell runs a command on a host and returns what it prints.
func shell(t testing.TB, h *testbed.Host, command string) string {
	t.Helper()
	return h.Run(t, "sh", "-c", command)
}
