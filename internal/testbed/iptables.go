package testbed

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
)

// IPTables is one backend of iptables in one family.
type IPTables struct{ IPv6, Legacy bool }

// Command returns its program.
func (v IPTables) Command() string {
	c := "iptables"
	if v.IPv6 {
		c = "ip6tables"
	}
	if v.Legacy {
		return c + "-legacy"
	}
	return c + "-nft"
}

// EachIPTables runs a test with each of the four, with a host of its own.
func EachIPTables(t *testing.T, f func(*testing.T, *Host, IPTables)) {
	for _, v := range []IPTables{{}, {IPv6: true}, {Legacy: true}, {IPv6: true, Legacy: true}} {
		t.Run(v.Command(), func(t *testing.T) {
			h := NewHostsT(t, "node")[0]
			if _, err := exec.LookPath(v.Command()); err != nil {
				Missing(t, err.Error())
			}
			f(t, h, v)
		})
	}
}

// WrapIPTables writes programs into a folder that run a command of iptables, with its -save and -restore, after a piece
// of shell, and returns the path of the first.
func WrapIPTables(t testing.TB, dir, command, before string) string {
	t.Helper()
	for _, suffix := range []string{"", "-restore", "-save"} {
		program, err := exec.LookPath(command + suffix)
		Check(t, err)
		WriteScript(t, filepath.Join(dir, command+suffix), fmt.Sprintf("%s\nexec %s \"$@\"\n", before, program))
	}
	return filepath.Join(dir, command)
}
