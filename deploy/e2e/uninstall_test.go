package e2e

import (
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// containerArgs is how setpriv starts a program with the capabilities of a container.
func containerArgs(c *corev1.Container) []string {
	bounds := "--bounding-set=-all"
	for _, capability := range c.SecurityContext.Capabilities.Add {
		bounds += ",+" + strings.ToLower(string(capability))
	}
	return append([]string{"--no-new-privs", bounds, *sluice}, c.Args...)
}

// TestUninstall: the API server takes the overlay; its init container fails while a Sluice runs, and then removes all
// that it has left; the container after it waits until it is to end.
func TestUninstall(t *testing.T) {
	l := newLab(t)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}} // a controller makes it in a cluster
	_, err := l.admin.CoreV1().ServiceAccounts(metav1.NamespaceSystem).Create(l.ctx, account, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		l.check(err)
	}
	objects := render(t, "../overlays/uninstall")
	for _, o := range objects {
		l.check(l.put(o))
	}
	pod := l.daemonSet(objects).Spec.Template.Spec
	clean := func() (string, error) {
		out, err := l.Node.Command(l.ctx, "setpriv", containerArgs(&pod.InitContainers[0])...).CombinedOutput()
		return string(out), err
	}

	l.serve(8080, l.Pods[0])
	l.apply(service("web", "ports: [{port: 80}]"), slice("web", 1, 8080, "TCP", l.Pods[0]),
		inKernel("kernel", "ports: [{port: 80}]"), slice("kernel", 1, 8080, "TCP", l.Pods[0]))
	l.start()
	l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[0])
	l.expect(l.Client, "tcp", l.addr("kernel", 80), l.Pods[0])
	if out, err := clean(); err == nil || !strings.Contains(out, "another Sluice") {
		t.Errorf("while Sluice runs: %v, %s", err, out)
	}
	l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[0])
	l.stop(syscall.SIGKILL)
	const traces = "iptables-save; ip6tables-save; iptables-legacy-save; ipset list -name"
	if left := l.onNode(traces); !strings.Contains(left, "SLUICE") {
		t.Fatal("Sluice has left nothing: this tests nothing")
	}
	if out, err := clean(); err != nil {
		t.Errorf("clean up: %v: %s", err, out)
	}
	if left := l.onNode(traces); strings.Contains(left, "SLUICE") {
		t.Errorf("it leaves\n%s", left)
	}

	l.launchProgram("setpriv", nil, containerArgs(&pod.Containers[0])...)
	l.eventually("the program waits", func() bool { return strings.Contains(l.log.String(), "waiting to be stopped") })
	if code := l.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("who waits ends with %d", code)
	}
}
