package command

import (
	"bytes"
	"strings"
	"testing"
)

// TestArguments: what is a command, and what is none.
func TestArguments(t *testing.T) {
	for _, x := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"help"}, 0, "sluice --config FILE"},
		{[]string{"help", "status"}, 0, "Show the running process"},
		{[]string{"completion", "zsh"}, 0, "#compdef sluice"},
		{[]string{"completion", "fish"}, 0, "complete -c sluice"},
		{[]string{"endponits"}, 1, "sluice endponits: there is no such command: did you mean endpoints?"},
		{[]string{"svc", "--api-socket", "/nowhere/api.sock"}, 1, "no running Sluice answers at /nowhere/api.sock"},
		{[]string{"frobnicate"}, 1, "sluice frobnicate: there is no such command (see sluice --help)"},
		{[]string{"status", "--nosuch"}, 1, "sluice status: unknown flag: --nosuch"},
		{[]string{"status", "more"}, 1, "unknown command"},
		{[]string{"man"}, 0, ".SS sluice explain\n"},
		{[]string{"upgrade"}, 1, "sluice: which process is to be upgraded"},
		{[]string{"explain", "--help"}, 0, "sluice explain [flags] [CLIENT] NAMESPACE/NAME"},
	} {
		var out bytes.Buffer
		if code := Main(Build{Version: "test"}, x.args, &out, &out); code != x.code || !strings.Contains(out.String(),
			x.want) {
			t.Errorf("sluice %q = %d, want %d with %q; it says:\n%s", x.args, code, x.code, x.want, out.String())
		}
	}
}
