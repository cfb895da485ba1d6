package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// kubeletRules are what kubelet has in the kernel beside kube-proxy (pkg/kubelet/kubelet_network_linux.go).
const kubeletRules = `iptables -N KUBE-FIREWALL && iptables -A INPUT -j KUBE-FIREWALL && iptables -t mangle -N KUBE-IPTABLES-HINT &&
	for table in mangle nat filter; do iptables -t $table -N KUBE-KUBELET-CANARY; done`

// proxyConfig is a file for kube-proxy, and for Sluice in its place.
func (l *lab) proxyConfig(mode string) string {
	l.t.Helper()
	file := filepath.Join(l.dir, "config.conf")
	l.check(os.WriteFile(file, fmt.Appendf(nil, `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %q
clientConnection: {kubeconfig: %s}
clusterCIDR: 10.244.0.0/16
hostnameOverride: node
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {minSyncPeriod: 1ms}
nftables: {minSyncPeriod: 1ms}
`, mode, l.kubeconfigFile()), 0o600))
	return file
}

// asKubeProxy gives the lab the account that kubeadm makes for kube-proxy.
func (l *lab) asKubeProxy() {
	l.t.Helper()
	for document := range strings.SplitSeq(kubeadmObjects, "---\n") {
		text, err := yaml.YAMLToJSON([]byte(document))
		l.check(err)
		l.check(l.put(text))
	}
	l.as = &account{metav1.NamespaceSystem, "kube-proxy"}
	l.rotateToken()
}

// kubeProxy starts the real one on the node. It ends with the test, and what it has written is removed, too.
func (l *lab) kubeProxy(config string) *testbed.Process {
	l.t.Helper()
	if _, err := os.Stat(*kubeproxy); err != nil {
		testbed.Missing(l.t, fmt.Sprintf("%v: run make e2e, which gets everything", err))
	}
	cmd := l.Node.Command(context.Background(), *kubeproxy, "--config", config)
	cmd.Stdout, cmd.Stderr = &l.log, &l.log
	p, err := cmd.Launch()
	l.check(err)
	l.t.Cleanup(func() {
		p.Stop(syscall.SIGKILL)
		if out, err := l.Node.Command(l.ctx, *kubeproxy, "--cleanup", "--config", config).CombinedOutput(); err != nil {
			l.t.Errorf("kube-proxy --cleanup: %v: %s", err, out)
		}
		l.onNode("for command in iptables ip6tables; do $command -F; $command -X KUBE-FIREWALL; done; iptables -t mangle -X KUBE-IPTABLES-HINT; " +
			"for table in mangle nat filter; do iptables -t $table -X KUBE-KUBELET-CANARY; done; true")
	})
	return p
}

// onNode runs a script on the node and returns what it writes.
func (l *lab) onNode(script string) string {
	l.t.Helper()
	out, err := l.Node.Command(l.ctx, "sh", "-c", script).CombinedOutput()
	if err != nil {
		l.t.Fatalf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

// kubeProxyRules returns what there is in the kernel of kube-proxy's, and of kubelet's, by their names.
func (l *lab) kubeProxyRules() (proxy, kubelet []string) {
	l.t.Helper()
	for line := range strings.Lines(l.onNode("iptables-save; ip6tables-save; iptables-legacy-save; ip6tables-legacy-save; nft list tables")) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), " [") // counters
		switch {
		case !strings.Contains(line, "KUBE-") && !strings.Contains(line, "kube-proxy"):
		case strings.Contains(line, "KUBE-FIREWALL"), strings.Contains(line, "KUBE-KUBELET-CANARY"), strings.Contains(line, "KUBE-IPTABLES-HINT"):
			kubelet = append(kubelet, line)
		default:
			proxy = append(proxy, line)
		}
	}
	return proxy, kubelet
}

// TestKubeProxyThereAndBack: Sluice follows the real kube-proxy with the same file, removes what that has left, and
// nothing of kubelet's; a Service that is deleted then is no longer answered. The way back to kube-proxy loses no
// connection.
func TestKubeProxyThereAndBack(t *testing.T) {
	for _, mode := range []string{"", "iptables", "nftables"} { // empty: user space, and kube-proxy's iptables
		t.Run("mode "+mode, func(t *testing.T) {
			l := newLab(t)
			l.asKubeProxy()
			config := l.proxyConfig(mode)
			l.serve(8080, l.Pods[0])
			for _, name := range []string{"web", "gone"} {
				l.apply(service(name, "type: NodePort, ports: [{port: 80}]"), slice(name, 1, 8080, "TCP", l.Pods[0]))
			}
			stays, goes, port := l.addr("web", 80), l.addr("gone", 80), l.nodePort("gone")
			l.onNode(kubeletRules)
			proxy := l.kubeProxy(config)
			for _, addr := range []string{stays, goes, port} {
				l.expect(l.Client, "tcp", addr, l.Pods[0])
			}
			proxy.Stop(syscall.SIGKILL)
			rules, kubelet := l.kubeProxyRules() // kube-proxy has added one to KUBE-FIREWALL
			if len(rules) == 0 || len(kubelet) == 0 {
				t.Fatal("kube-proxy has left nothing: this tests nothing")
			}

			l.launch(nil, "--config", config)
			l.awaitHealthy()
			// Nothing reports that the rules of another program are gone.
			l.within(patience, func() string { return fmt.Sprintf("kube-proxy's rules go; there are %q", rules) }, func() bool {
				rules, _ = l.kubeProxyRules()
				return len(rules) == 0
			})
			if _, now := l.kubeProxyRules(); strings.Join(now, "\n") != strings.Join(kubelet, "\n") {
				t.Errorf("kubelet's rules were\n%q, and are\n%q", kubelet, now)
			}
			if !strings.Contains(l.log.String(), "kube-proxy's rules are removed") {
				t.Error("the log does not say so")
			}
			l.expect(l.Client, "tcp", stays, l.Pods[0])
			l.deleteService("gone")
			for _, addr := range []string{goes, port} {
				l.eventually(addr+" is no longer answered", func() bool {
					_, err := l.Client.TryAsk("tcp", addr, soon)
					return err != nil
				})
			}
			l.besideAgain(config, stays)

			l.backToKubeProxy(mode, config, stays)
			if rules := l.onNode("iptables-save; ip6tables-save; ipset list -name"); strings.Contains(rules, "SLUICE-S") {
				t.Errorf("Sluice has left\n%s", rules)
			}
			l.apply(service("new", "ports: [{port: 80}]"), slice("new", 1, 8080, "TCP", l.Pods[0]))
			l.expect(l.Client, "tcp", l.addr("new", 80), l.Pods[0]) // by kube-proxy, since there is no other
		})
	}
}

// besideAgain starts kube-proxy beside a Sluice that serves in its place, as an update of the cluster does: that is
// reported before anything looks without being told, and what it has written goes.
func (l *lab) besideAgain(config, addr string) {
	l.t.Helper()
	begin := time.Now().Add(-time.Second) // times of Events are in microseconds
	proxy := l.kubeProxy(config)
	l.event(metav1.NamespaceDefault, "Node", "node", "KubeProxyRuns", begin)
	if took := time.Since(begin); took > 25*time.Second { // less than firstLookPause
		l.t.Errorf("kube-proxy was noticed after %v", took)
	}
	l.expect(l.Client, "tcp", addr, l.Pods[0])
	if status := l.onNode(*sluice + " status"); !strings.Contains(status, "KubeProxyRuns") {
		l.t.Errorf("sluice status says\n%s", status)
	}
	proxy.Stop(syscall.SIGKILL)
	l.within(2*time.Minute, func() string { return "rules that came back are removed" }, func() bool {
		rules, _ := l.kubeProxyRules()
		return len(rules) == 0
	})
	l.expect(l.Client, "tcp", addr, l.Pods[0])
}

// backToKubeProxy goes back as docs/from-kube-proxy.md does, while clients ask a Service of the first pod: none fails.
// kube-proxy's next change counts when the node is cleaned, and in mode iptables before, as its jumps come first.
func (l *lab) backToKubeProxy(mode, config, addr string) {
	l.t.Helper()
	l.serve(8080, l.Pods[1])
	ended, clients, asked := make(chan struct{}), new(sync.WaitGroup), 0
	end := sync.OnceFunc(func() {
		close(ended)
		clients.Wait()
	})
	defer end()
	clients.Go(func() {
		next := time.NewTicker(10 * time.Millisecond)
		defer next.Stop()
		for ; ; asked++ {
			select {
			case <-ended:
				return
			case <-next.C:
			}
			if _, err := l.Client.TryAsk("tcp", addr, patience); err != nil {
				l.t.Errorf("connection %d on the way back: %v", asked, err)
			}
		}
	})
	l.stop(syscall.SIGTERM)
	l.check(l.kubeProxy(config).Healthy(l.ctx, testbed.HealthURL)) // it has written its rules
	l.apply(slice("web", 1, 8080, "TCP", l.Pods[1]))
	l.eventually("kube-proxy has the change", func() bool {
		return strings.Contains(l.onNode("iptables-save; nft list ruleset"), l.Pods[1].Addr4.String())
	})
	l.expect(l.Client, "tcp", addr, l.Pods[map[string]int{"": 0, "iptables": 1, "nftables": 0}[mode]])
	l.onNode(*sluice + " --cleanup")
	l.expect(l.Client, "tcp", addr, l.Pods[1])
	end()
	l.t.Logf("%d connections on the way back", asked)
}

// TestBesideKubeProxy: with a label of its own Sluice leaves alone what kube-proxy has, which serves the other
// Services.
func TestBesideKubeProxy(t *testing.T) {
	l := newLab(t)
	l.asKubeProxy()
	l.serve(8080, l.Pods[0])
	l.serve(8081, l.Pods[1])
	theirs := service("theirs", "ports: [{port: 80}]")
	ours := strings.Replace(service("ours", "ports: [{port: 80}]"), "{name: ours}",
		"{name: ours, labels: {service.kubernetes.io/service-proxy-name: sluice}}", 1)
	l.apply(theirs, slice("theirs", 1, 8080, "TCP", l.Pods[0]), ours, slice("ours", 1, 8081, "TCP", l.Pods[1]))
	l.kubeProxy(l.proxyConfig("iptables"))
	l.expect(l.Client, "tcp", l.addr("theirs", 80), l.Pods[0])
	before, _ := l.kubeProxyRules()
	l.launch(nil, "--kubeconfig", l.kubeconfigFile(), "--hostname-override=node", "--service-proxy-name=sluice",
		"--healthz-bind-address=127.0.0.1:10356", "--metrics-bind-address=127.0.0.1:10349")
	l.expect(l.Client, "tcp", l.addr("ours", 80), l.Pods[1])
	addr := l.addr("ours", 80)
	l.deleteService("ours") // by the time that this has its effect a removal would have, too
	l.expectSilence(l.Client, "tcp", addr)
	l.expect(l.Client, "tcp", l.addr("theirs", 80), l.Pods[0])
	after, _ := l.kubeProxyRules() // those of IPv6 may have come meanwhile
	for _, rule := range before {
		if !slices.Contains(after, rule) {
			t.Errorf("kube-proxy's rule %q is gone", rule)
		}
	}
	if strings.Contains(l.log.String(), "kube-proxy's rules") {
		t.Error("the log says that rules were removed")
	}
}
