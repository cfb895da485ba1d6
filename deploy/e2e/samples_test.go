package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// samples are the files that package config holds to their meaning.
const samples = "../../cmd/sluice/internal/config/testdata"

// TestSamples starts Sluice with the configuration files and the command line that
// operators have, changed in nothing but where the kubeconfig is, and asks a Service.
func TestSamples(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods[0])
	l.apply(service("web", "type: NodePort, ports: [{port: 80}]"), slice("web", 1, 8080, "TCP", l.Pods[0]))
	files, err := filepath.Glob(filepath.Join(samples, "*.yaml"))
	l.check(err)
	if len(files) != 5 {
		t.Fatalf("samples %v", files)
	}
	commands := map[string][]string{"the classic flags": {"--logtostderr=true", "--v=0", "--master=https://" + apiAddr, "--bind-address=" + l.Node.Addr4.String(),
		"--cluster-cidr=10.244.0.0/16", "--hostname-override=node", "--kubeconfig=" + l.kubeconfigFile()}}
	modes := map[string]string{"the classic flags": "userspace"}
	for _, file := range files {
		text, err := os.ReadFile(file)
		l.check(err)
		name := filepath.Base(file)
		mine := filepath.Join(t.TempDir(), name)
		l.check(os.WriteFile(mine, []byte(strings.ReplaceAll(string(text), "KUBECONFIG", l.kubeconfigFile())), 0o600))
		commands[name] = []string{"--config", mine, "--hostname-override=node"}
		modes[name] = "userspace"
		for _, mode := range []string{"iptables", "ipvs"} {
			if strings.Contains(string(text), "\nmode: "+mode+"\n") {
				modes[name] = mode
			}
		}
	}
	for name, args := range commands {
		t.Run(name, func(t *testing.T) {
			l.launch(nil, args...)
			l.awaitHealthy()
			l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[0])
			l.expect(l.Client, "tcp", l.nodePort("web"), l.Pods[0])
			code, mode := l.Node.Page("http://127.0.0.1:10249/proxyMode")
			if code == 0 { // with bindAddress "::" the default is ::1
				_, mode = l.Node.Page("http://[::1]:10249/proxyMode")
			}
			if mode != modes[name] {
				t.Errorf("/proxyMode is %q, want %q", mode, modes[name])
			}
			if code := l.stop(syscall.SIGTERM); code != 0 {
				t.Errorf("Sluice ends with %d", code)
			}
		})
	}
}
