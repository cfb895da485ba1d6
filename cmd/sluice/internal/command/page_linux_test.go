package command

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/cli"
)

const (
	commandsPage  = "../../../../docs/commands.md"
	commandsIntro = "# Commands\n\n" +
		"This is what `sluice COMMAND --help` prints. Commands ask the running process at its unix socket\n" +
		"(`--api-socket`, in [flags.md](flags.md)). Only root and the process's own user may connect. The socket\n" +
		"also serves JSON over HTTP: `curl --unix-socket /run/sluice/api.sock http://sluice/v1` lists the resources.\n" +
		"Commands that change something, like `drain`, work at the socket only.\n\n" +
		"Written by `SLUICE_UPDATE=1 go test ./cmd/sluice/internal/command -run TestCommandsPage`; a test keeps it\n" +
		"true.\n"
)

// TestCommandsPage keeps the page of commands true.
func TestCommandsPage(t *testing.T) {
	var page strings.Builder
	page.WriteString(commandsIntro)
	for _, c := range cli.Root(others, io.Discard, io.Discard).Commands() {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		var out bytes.Buffer
		if code := Main(Build{Version: "test"}, []string{c.Name(), "--help"}, &out, &out); code != 0 {
			t.Errorf("sluice %s --help = %d", c.Name(), code)
		}
		fmt.Fprintf(&page, "\n## sluice %s\n\n```\n%s\n```\n", c.Name(), strings.TrimSpace(out.String()))
	}
	testbed.Golden(t, commandsPage, page.String())
}

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
