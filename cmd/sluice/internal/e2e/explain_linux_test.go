package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/command"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestExplain asks about a Service in iptables, by the rules that a program wrote.
func TestExplain(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	l.ServeWeb()
	l.Write("the-node.yaml", nodeManifest)
	l.Start("--proxy-mode", "iptables", "--hostname-override", "node")
	rules := filepath.Join(t.TempDir(), "rules")
	testbed.Check(t, os.WriteFile(rules, []byte(l.Output("iptables-save")), 0o644))
	ask := func(code int, args ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		argv := append([]string{"explain", "--manifests", l.Dir, "--hostname-override", "node", "--proxy-mode", "iptables", "--rules", rules}, args...)
		got := command.Main(command.Build{Version: "test"}, argv, &stdout, &stderr)
		if got != code {
			t.Errorf("explain %q = %d, %s", args, got, stderr.String())
		}
		return stdout.String() + stderr.String()
	}
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{"--client", "192.0.2.100", "tcp", lab.WebAddr}, []string{
			"TCP 10.96.0.80:80 belongs to default/web: cluster IP", "3 of 3 endpoints eligible", "data path iptables: --proxy-mode",
			"33.33% forwarded to 10.244.1.10:8080, masqueraded", "33.33% forwarded to 10.244.1.12:8080, masqueraded", "-j DNAT --to-destination 10.244.1.10:8080",
		}},
		{[]string{"--client", "10.244.1.12", "--interface", "cni0", "default/web"}, []string{
			"33.33% forwarded to 10.244.1.10:8080\n", "33.33% forwarded to 10.244.1.12:8080, masqueraded",
		}},
		{[]string{"tcp", "10.96.0.99:80"}, []string{"TCP 10.96.0.99:80 belongs to no service"}},
		{[]string{"--help"}, []string{"Usage:", "--client"}},
	} {
		got := ask(0, test.args...)
		for _, want := range test.want {
			if !strings.Contains(got, want) {
				t.Errorf("explain %q says\n%s\nwhich lacks %q", test.args, got, want)
			}
		}
	}
	if got := ask(1, "default/missing"); !strings.HasPrefix(got, "sluice explain: no Service default/missing") {
		t.Errorf("explain says %q", got)
	}
}
