package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// addr returns the address of a Service's port, at its cluster IP.
func (l *lab) addr(name string, port int) string {
	l.t.Helper()
	return net.JoinHostPort(l.service(name).Spec.ClusterIP, strconv.Itoa(port))
}

// TestWatchLifeOfAService creates, scales, retargets, relabels and deletes, with traffic at
// each step.
func TestWatchLifeOfAService(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods...)
	l.serve(8080, l.RemotePods...)
	l.serve(9090, l.Pods[0])
	for _, protocol := range []string{"TCP", "UDP"} {
		l.apply(service("early-"+strings.ToLower(protocol), "ports: [{port: 80, protocol: "+protocol+"}]"),
			slice("early-"+strings.ToLower(protocol), 1, 8080, protocol, l.Pods[0]))
	}
	l.start()
	for _, protocol := range []string{"TCP", "UDP"} {
		network := strings.ToLower(protocol)
		early := l.addr("early-"+network, 80)
		l.expect(l.Client, network, early, l.Pods[0])

		name := "web-" + network
		l.apply(service(name, "ports: [{port: 80, protocol: "+protocol+"}]"))
		addr := l.addr(name, 80)
		l.expectRefused(l.Client, network, addr)
		l.apply(slice(name, 1, 8080, protocol, l.Pods[0])) // create
		for _, from := range []*testbed.Host{l.Client, l.Node, l.Pods[0], l.Pods[1], l.RemotePods[0]} {
			l.expect(from, network, addr, l.Pods[0])
		}
		l.apply(slice(name, 1, 8080, protocol, l.Pods...)) // scale up
		l.expect(l.Client, network, addr, l.Pods...)
		l.apply(slice(name, 2, 8080, protocol, l.RemotePods...)) // a second slice
		l.expect(l.Client, network, addr, append(l.RemotePods[:2:2], l.Pods...)...)
		l.deleteSlice(name + "-2")
		l.apply(slice(name, 1, 8080, protocol, l.Pods[1])) // scale down
		l.expect(l.Client, network, addr, l.Pods[1])
		l.apply(slice(name, 1, 9090, protocol, l.Pods[0])) // retarget
		l.expect(l.Client, network, addr, l.Pods[0])
		l.apply(service(name, "ports: [{port: 81, protocol: "+protocol+"}]")) // another port
		l.expect(l.Client, network, l.addr(name, 81), l.Pods[0])

		l.label(name, "service.kubernetes.io/service-proxy-name", "another-proxy")
		l.expectSilence(l.Client, network, l.addr(name, 81))
		l.label(name, "service.kubernetes.io/service-proxy-name", "")
		l.expect(l.Client, network, l.addr(name, 81), l.Pods[0])

		addr = l.addr(name, 81)
		l.deleteService(name)
		l.expectSilence(l.Client, network, addr)
		l.expect(l.Client, network, early, l.Pods[0])
	}
}

// TestTypes takes a Service through every type there is, and back.
func TestTypes(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods[0])
	l.start()
	node := l.Node.Addr4.String()
	l.apply(service("web", "ports: [{port: 80}]"), slice("web", 1, 8080, "TCP", l.Pods[0]))
	l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[0])

	l.apply(service("web", "type: NodePort, ports: [{port: 80}]"))
	nodePort := l.service("web").Spec.Ports[0].NodePort
	at := fmt.Sprintf("%s:%d", node, nodePort)
	l.expect(l.Client, "tcp", at, l.Pods[0])
	l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[0])

	l.apply(service("web", fmt.Sprintf("type: LoadBalancer, externalIPs: [198.51.100.7], ports: [{port: 80, nodePort: %d}]", nodePort)) +
		"status: {loadBalancer: {ingress: [{ip: 203.0.113.7}, {ip: 203.0.113.8, ipMode: Proxy}, {hostname: lb.example}]}}\n")
	for _, addr := range []string{at, l.addr("web", 80), "203.0.113.7:80", "198.51.100.7:80"} {
		l.expect(l.Client, "tcp", addr, l.Pods[0])
	}
	l.expectSilence(l.Client, "tcp", "203.0.113.8:80")

	cluster := l.addr("web", 80)
	l.apply(service("web", "type: ExternalName, externalName: web.example"))
	for _, addr := range []string{cluster, "203.0.113.7:80"} {
		l.expectSilence(l.Client, "tcp", addr)
	}
	l.expectRefused(l.Client, "tcp", at)
	l.apply(service("web", "type: NodePort, ports: [{port: 80}]"))
	l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[0])
	l.expect(l.Client, "tcp", fmt.Sprintf("%s:%d", node, l.service("web").Spec.Ports[0].NodePort), l.Pods[0])
	l.apply(service("web", "type: ClusterIP, ports: [{port: 80}]"))
	l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[0])

	l.apply(service("headless", "clusterIP: None, ports: [{port: 80}]"), slice("headless", 1, 8080, "TCP", l.Pods[0]))
	l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[0])
}

// TestWatchControlPlaneAway kills the API server and etcd under load, changes what is
// served after they are back, and expects that no connection noticed.
func TestWatchControlPlaneAway(t *testing.T) {
	l := newLab(t)
	for _, pod := range l.Pods {
		testbed.Keep(l.t)(pod.EchoTCP(":7"))
	}
	l.serve(8080, l.Pods...)
	l.apply(service("echo", "ports: [{port: 7}]"), slice("echo", 1, 7, "TCP", l.Pods...),
		service("web", "ports: [{port: 80}]"), slice("web", 1, 8080, "TCP", l.Pods[:2]...))
	l.start()
	web := l.addr("web", 80)
	l.expect(l.Client, "tcp", web, l.Pods[:2]...)
	load := l.newLoad(50, l.addr("echo", 7), web)
	const lastApplied = `kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"}`
	applied := l.metric(lastApplied)

	kill(l.server)
	kill(l.etcd)
	time.Sleep(*outage) // the length of the outage is what is tested
	if code, body := l.Node.Page("http://127.0.0.1:10256/healthz"); code != 200 {
		t.Errorf("unhealthy without an API server: %d %s", code, body)
	}
	const contact = "sluice_apiserver_last_contact_timestamp_seconds"
	before := l.metric(contact)
	if readable := l.metric("sluice_apiserver_readable"); readable != 0 || before == 0 {
		t.Errorf("without an API server sluice_apiserver_readable = %v, %s = %v", readable, contact, before)
	}
	l.check(l.startEtcd())
	l.check(l.startServer())
	// After a long outage a reflector waits for up to a minute before it tries again.
	l.within(patience+time.Minute, func() string { return "the API server is read again" }, func() bool { return strings.Contains(l.log.String(), "the API server answers again") })
	if readable, now := l.metric("sluice_apiserver_readable"), l.metric(contact); readable != 1 || now <= before {
		t.Errorf("with an API server again sluice_apiserver_readable = %v, %s = %v after %v", readable, contact, now,
			before)
	}
	if now := l.metric(lastApplied); now != applied {
		t.Errorf("a change was applied at %v, when the same objects came back", now)
	}
	l.apply(slice("web", 1, 8080, "TCP", l.Pods[2]))
	l.expect(l.Client, "tcp", web, l.Pods[2])
	load.stop()
	load.expectNoLoss()
	if times := strings.Count(l.log.String(), "cannot be reached"); times != 1 {
		t.Errorf("logged %d times that the API server is away, want once", times)
	}
}

// TestRestartsOfTheServer kills only the API server, again and again.
func TestRestartsOfTheServer(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods...)
	l.apply(service("web", "ports: [{port: 80}]"), slice("web", 1, 8080, "TCP", l.Pods[0]))
	l.start()
	web := l.addr("web", 80)
	load := l.newLoad(0, "", web)
	for i := range 3 {
		kill(l.server)
		l.check(l.startServer())
		l.apply(slice("web", 1, 8080, "TCP", l.Pods[(i+1)%len(l.Pods)]))
		l.expect(l.Client, "tcp", web, l.Pods[(i+1)%len(l.Pods)])
	}
	load.stop()
	load.expectNoLoss()
}

// TestWatchTokenIsRevokedAndRotated takes Sluice's credentials away, and gives it new ones.
func TestWatchTokenIsRevokedAndRotated(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods...)
	l.apply(service("web", "ports: [{port: 80}]"), slice("web", 1, 8080, "TCP", l.Pods[0]))
	first := l.rotateToken()
	l.start()
	web := l.addr("web", 80)
	load := l.newLoad(0, "", web)
	l.expect(l.Client, "tcp", web, l.Pods[0])

	a, err := l.account()
	l.check(err)
	l.check(l.admin.CoreV1().Secrets(a.namespace).Delete(l.ctx, first, metav1.DeleteOptions{}))
	kill(l.server) // a stream that is open is not asked for its token again
	l.check(l.startServer())
	l.eventually("Sluice says that its credentials are refused", func() bool { return strings.Contains(l.log.String(), "does not accept our credentials") })
	l.apply(slice("web", 1, 8080, "TCP", l.Pods[1]))
	l.expect(l.Client, "tcp", web, l.Pods[0]) // it cannot know
	l.rotateToken()
	l.expect(l.Client, "tcp", web, l.Pods[1])
	load.stop()
	load.expectNoLoss()
}

// TestWatchRights runs Sluice without rights, and then with what the shipped ClusterRole gives
// it: everything it asks for, and nothing that it does not.
func TestWatchRights(t *testing.T) {
	l := newLab(t)
	l.mayBeForbidden = true
	l.serve(8080, l.Pods[0])
	l.apply(service("web", "ports: [{port: 80}]"), slice("web", 1, 8080, "TCP", l.Pods[0]))
	role, _, err := shippedRole()
	l.check(err)
	roles := l.admin.RbacV1().ClusterRoles()
	none := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: role.Name}}
	_, err = roles.Update(l.ctx, none, metav1.UpdateOptions{})
	l.check(err)
	t.Cleanup(func() { _, err := roles.Update(l.ctx, role, metav1.UpdateOptions{}); l.check(err) })

	l.launch(nil, "--kubeconfig", l.kubeconfigFile(), "--hostname-override", "node")
	for _, resource := range []string{"services", "endpointslices", "nodes"} {
		want := "the API server does not let us list " + resource + ": bind the ClusterRole of deploy/base/rbac.yaml"
		l.eventually("Sluice says: "+want, func() bool { return strings.Contains(l.log.String(), want) })
	}
	if code, _ := l.Node.Page("http://127.0.0.1:10256/healthz"); code != 503 {
		t.Errorf("/healthz is %d before Services are known, want 503", code)
	}
	_, err = roles.Update(l.ctx, role, metav1.UpdateOptions{})
	l.check(err)
	l.awaitHealthy()
	l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[0])
}

// TestInAPod starts Sluice as a pod does, with nothing but a service account.
func TestInAPod(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods[0])
	l.apply(service("web", "ports: [{port: 80}]"), slice("web", 1, 8080, "TCP", l.Pods[0]))
	const mount = "/var/run/secrets/kubernetes.io/serviceaccount" // /run is this program's own, see testbed.Reexec
	l.check(os.MkdirAll(mount, 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(mount) }) // the whole of /run ends with the program
	token, err := os.ReadFile(l.tokenFile())
	l.check(err)
	l.check(os.WriteFile(filepath.Join(mount, "token"), token, 0o600))
	l.check(os.WriteFile(filepath.Join(mount, "ca.crt"), l.ca, 0o600))
	host, port, err := net.SplitHostPort(apiAddr)
	l.check(err)
	l.launch([]string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}, "--hostname-override", "node")
	l.awaitHealthy()
	l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[0])
	l.expectAPI()
}

// expectAPI connects to the API server by its own Service.
func (l *lab) expectAPI() {
	l.t.Helper()
	c, err := l.Client.Dial(l.ctx, "tcp", "10.96.0.1:443")
	l.check(err)
	l.check(c.Close())
}

// TestWrongNodeName gives a name that no Node has.
func TestWrongNodeName(t *testing.T) {
	l := newLab(t)
	l.launch(nil, "--kubeconfig", l.kubeconfigFile(), "--hostname-override", "nobody")
	want := "set --hostname-override to a name that kubectl get nodes shows"
	l.eventually("Sluice says: "+want, func() bool { return strings.Contains(l.log.String(), want) })
	if code := l.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("stopped while it waited, Sluice ends with %d, want 0", code)
	}
}

// TestStopWithoutServer stops Sluice while it waits for an API server that is away.
func TestStopWithoutServer(t *testing.T) {
	l := newLab(t)
	l.launch(nil, "--master", "https://192.0.2.1:1", "--hostname-override", "node")
	l.eventually("Sluice says that the server is away", func() bool { return strings.Contains(l.log.String(), "cannot be reached") })
	if code := l.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("Sluice ends with %d, want 0", code)
	}
}

// TestWatchServerHangs stops the API server without ending it, as an overloaded machine
// does: connections stay open without an answer.
func TestWatchServerHangs(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods...)
	l.apply(service("web", "ports: [{port: 80}]"), slice("web", 1, 8080, "TCP", l.Pods[0]))
	l.start()
	web := l.addr("web", 80)
	l.expect(l.Client, "tcp", web, l.Pods[0])
	load := l.newLoad(0, "", web)
	l.server.Signal(syscall.SIGSTOP)
	resume := func() { l.server.Signal(syscall.SIGCONT) }
	defer resume()

	// One that starts meanwhile waits, and can be stopped.
	late := &lab{control: l.control, t: t, ctx: l.ctx}
	late.launch(nil, "--kubeconfig", l.kubeconfigFile(), "--hostname-override", "node", "--healthz-bind-address", "", "--metrics-bind-address", "")
	late.eventually("the late one has started to read", func() bool { return strings.Contains(late.log.String(), "reading Services from the API server") })
	if code := late.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("stopped while it waited, Sluice ends with %d, want 0: %s", code, late.log.String())
	}
	before := load.opened.Load()
	l.eventually("connections are opened", func() bool { return load.opened.Load() > before+100 })
	resume()
	l.apply(slice("web", 1, 8080, "TCP", l.Pods[1]))
	l.expect(l.Client, "tcp", web, l.Pods[1])
	load.stop()
	load.expectNoLoss()
}

// TestRestartOfSluice ends Sluice in each way and starts it again, and expects that new
// connections fail only while there is no process.
func TestRestartOfSluice(t *testing.T) {
	for _, how := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(how.String(), func(t *testing.T) {
			l := newLab(t)
			l.serve(8080, l.Pods...)
			l.apply(service("web", "ports: [{port: 80}]"), slice("web", 1, 8080, "TCP", l.Pods...))
			l.start("--drain-timeout", "0s")
			web := l.addr("web", 80)
			l.expect(l.Client, "tcp", web, l.Pods...)
			load := l.newLoad(0, "", web)
			l.eventually("connections are opened", func() bool { return load.opened.Load() > 10 })
			gone := time.Now()
			l.stop(how)
			l.start()
			back := time.Now()
			before := load.opened.Load()
			l.eventually("connections are opened again", func() bool { return load.opened.Load() > before+100 })
			load.stop()
			for _, failed := range load.refused {
				if failed.Before(gone) || failed.After(back.Add(time.Second)) { // a dial may have started before
					t.Errorf("a connection failed %v after Sluice was healthy again", failed.Sub(back))
				}
			}
			t.Logf("away for %v, %d connections failed meanwhile", back.Sub(gone), len(load.refused))
		})
	}
}
