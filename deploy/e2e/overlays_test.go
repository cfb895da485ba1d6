package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// overlays are all folders of deploy that are applied.
var overlays = []string{"base", "overlays/whole-cluster", "overlays/beside", "overlays/kubeadm", "overlays/uninstall",
	"overlays/uninstall-iptables"}

// kustomizes are the versions that kubectl 1.32, 1.33 and 1.34 have built in.
var kustomizes = []string{"v5.5.0", "v5.6.0", "v5.7.1"}

// build returns what a version of kustomize makes of a folder.
func build(t *testing.T, version, folder string) []byte {
	t.Helper()
	program := filepath.Join(*kustomize, version, "kustomize")
	if _, err := os.Stat(program); err != nil {
		testbed.Missing(t, fmt.Sprintf("%v: run make e2e, which gets everything", err))
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, "build", folder)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || stderr.Len() > 0 {
		t.Fatalf("kustomize %s build %s: %v, %.2000s", version, folder, err, stderr.String())
	}
	return out
}

// render returns what the oldest kustomize makes of a folder, or helm of the chart, as objects in JSON.
func render(t *testing.T, folder string) []json.RawMessage {
	t.Helper()
	if _, values, ok := strings.Cut(folder, chartFolder); ok {
		objects, err := helmed(t, "--set", strings.TrimSpace(values))
		if err != nil {
			t.Fatal(err)
		}
		return objects
	}
	return documents(t, string(build(t, kustomizes[0], folder)))
}

// TestOverlaysRender: what kubectl makes of an overlay does not depend on its version.
func TestOverlaysRender(t *testing.T) {
	for _, overlay := range overlays {
		first := build(t, kustomizes[0], "../"+overlay)
		if !bytes.Contains(first, []byte("kind: DaemonSet")) {
			t.Errorf("%s has no DaemonSet:\n%s", overlay, first)
		}
		for _, version := range kustomizes[1:] {
			if again := build(t, version, "../"+overlay); !bytes.Equal(again, first) {
				t.Errorf("%s by kustomize %s:\n%s\nby %s:\n%s", overlay, version, again, kustomizes[0], first)
			}
		}
	}
}

// put writes an object as kubectl does, which has the API server refuse fields that it
// does not know: by replacing what there is, or creating it.
func (l *lab) put(object json.RawMessage) error {
	groups, err := restmapper.GetAPIGroupResources(l.admin.Discovery())
	if err != nil {
		return err
	}
	var o metav1.PartialObjectMetadata
	if err := json.Unmarshal(object, &o); err != nil {
		return err
	}
	kind := o.GroupVersionKind()
	mapping, err := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return err
	}
	path := "/apis/" + kind.GroupVersion().String()
	if kind.Group == "" {
		path = "/api/" + kind.Version
	}
	strict := func(r *rest.Request) *rest.Request {
		r = r.AbsPath(path).Resource(mapping.Resource.Resource).Param("fieldValidation", "Strict").
			SetHeader("Content-Type", "application/json").Body([]byte(object))
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			r = r.Namespace(o.Namespace)
		}
		return r
	}
	client := l.admin.Discovery().RESTClient()
	err = strict(client.Post()).Do(l.ctx).Error()
	if apierrors.IsAlreadyExists(err) {
		err = strict(client.Put()).Name(o.Name).Do(l.ctx).Error()
	}
	if err != nil {
		return fmt.Errorf("put %s %s: %w", kind.Kind, o.Name, err)
	}
	return nil
}

// kubeadmObjects is what kubeadm has put into a cluster for its kube-proxy, the parts
// that Sluice takes over.
const kubeadmObjects = `apiVersion: v1
kind: ServiceAccount
metadata: {name: kube-proxy, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "kubeadm:node-proxier"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-proxier"}
subjects: [{kind: ServiceAccount, name: kube-proxy, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kube-proxy, namespace: kube-system, labels: {app: kube-proxy}}
data:
  kubeconfig.conf: |
    apiVersion: v1
    kind: Config
    clusters:
    - cluster:
        certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
        server: https://192.0.2.1:6443
      name: default
    contexts:
    - context: {cluster: default, namespace: default, user: default}
      name: default
    current-context: default
    users:
    - name: default
      user:
        tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
  config.conf: |
    apiVersion: kubeproxy.config.k8s.io/v1alpha1
    kind: KubeProxyConfiguration
    bindAddress: 0.0.0.0
    clientConnection: {acceptContentTypes: "", burst: 0, contentType: "", kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}
    clusterCIDR: 10.244.0.0/16
    configSyncPeriod: 0s
    healthzBindAddress: ""
    hostnameOverride: ""
    metricsBindAddress: ""
    mode: ""
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system, labels: {k8s-app: kube-proxy}}
spec:
  selector: {matchLabels: {k8s-app: kube-proxy}}
  template:
    metadata: {labels: {k8s-app: kube-proxy}}
    spec:
      containers: [{name: kube-proxy, image: kube-proxy, command: [/usr/local/bin/kube-proxy]}]
`

// TestOverlays applies what deploy has, with nothing else in the cluster that would
// give Sluice rights, and runs Sluice as the kubelet would: with the arguments,
// environment, files, token and capabilities that the applied objects say. The probes
// are asked where they say.
func TestOverlays(t *testing.T) {
	for _, test := range []struct{ folder, account, label string }{
		{folder: "base", account: "sluice"},
		{folder: "overlays/whole-cluster", account: "sluice"},
		{folder: "overlays/beside", account: "sluice", label: "sluice"},
		{folder: "overlays/kubeadm", account: "kube-proxy"},
		{folder: chartFolder + " mode=cluster,apiServer.host=192.0.2.1,networkPolicy.enabled=true,resources.limits.memory=1Gi", account: "sluice"},
		{folder: chartFolder + " serviceProxyName=chart", account: "sluice", label: "chart"},
	} {
		t.Run(test.folder, func(t *testing.T) {
			l := newLab(t)
			l.as = &account{metav1.NamespaceSystem, test.account}
			l.forgetShipped()
			t.Cleanup(func() { l.check(l.grant()) }) // for other tests
			if test.account == "kube-proxy" {
				for document := range strings.SplitSeq(kubeadmObjects, "---\n") {
					text, err := yaml.YAMLToJSON([]byte(document))
					l.check(err)
					l.check(l.put(text))
				}
			}
			objects := render(t, "../"+test.folder)
			for range 2 { // again changes nothing
				for _, o := range objects {
					l.check(l.put(o))
				}
			}
			l.serve(8080, l.Pods[0])
			web := service("web", "ports: [{port: 80}]")
			if test.label != "" {
				web = strings.Replace(web, "{name: web}", "{name: web, labels: {service.kubernetes.io/service-proxy-name: "+test.label+"}}", 1)
			}
			l.apply(web, slice("web", 1, 8080, "TCP", l.Pods[0]))
			d := l.daemonSet(objects)
			l.runPod(d)
			l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[0])
			c := &d.Spec.Template.Spec.Containers[0]
			for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
				url := fmt.Sprintf("http://%s%s", net.JoinHostPort(probe.HTTPGet.Host, probe.HTTPGet.Port.String()), probe.HTTPGet.Path)
				l.eventually(url+" answers 200", func() bool { code, _ := l.Node.Page(url); return code == 200 })
			}
		})
	}
}

// forgetShipped deletes what gives Sluice rights in the other tests.
func (l *lab) forgetShipped() {
	l.t.Helper()
	role, binding, err := shippedRole()
	l.check(err)
	for _, err := range []error{
		l.admin.RbacV1().ClusterRoles().Delete(l.ctx, role.Name, metav1.DeleteOptions{}),
		l.admin.RbacV1().ClusterRoleBindings().Delete(l.ctx, binding.Name, metav1.DeleteOptions{}),
	} {
		if !apierrors.IsNotFound(err) {
			l.check(err)
		}
	}
}

// daemonSet reads the DaemonSet among the objects back, and has the API server admit a
// pod of it: so the priority class and the service account are there.
func (l *lab) daemonSet(objects []json.RawMessage) *appsv1.DaemonSet {
	l.t.Helper()
	for _, o := range objects {
		var m metav1.PartialObjectMetadata
		l.check(json.Unmarshal(o, &m))
		if m.Kind != "DaemonSet" {
			continue
		}
		d, err := l.admin.AppsV1().DaemonSets(m.Namespace).Get(l.ctx, m.Name, metav1.GetOptions{})
		l.check(err)
		pod := &corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}
		pod.Name, pod.Spec.NodeName = d.Name+"-test", "node"
		admitted, err := l.admin.CoreV1().Pods(m.Namespace).Create(l.ctx, pod,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
		l.check(err)
		tolerates := func(t corev1.Toleration) bool {
			return t.Operator == corev1.TolerationOpExists && t.Key == "" && t.Effect == ""
		}
		if p := admitted.Spec.Priority; p == nil || *p != 2000001000 || !slices.ContainsFunc(admitted.Spec.Tolerations, tolerates) {
			l.t.Errorf("priority %v, tolerations %v: want those of system-node-critical and of everything", p, admitted.Spec.Tolerations)
		}
		return d
	}
	l.t.Fatal("no DaemonSet")
	return nil
}

// runPod starts Sluice as the kubelet would start the container of a pod.
func (l *lab) runPod(d *appsv1.DaemonSet) {
	l.t.Helper()
	pod := &d.Spec.Template.Spec
	if pod.ServiceAccountName != l.as.name {
		l.t.Errorf("the pod runs as %s", pod.ServiceAccountName)
	}
	const mount = "/var/run/secrets/kubernetes.io/serviceaccount" // /run is this program's own, see testbed.Reexec
	l.check(errors.Join(os.MkdirAll(mount, 0o755), os.MkdirAll("/run/sluice", 0o755)))
	l.t.Cleanup(func() { _ = os.RemoveAll(mount) }) // the whole of /run ends with the program
	l.rotateToken()
	token, err := os.ReadFile(l.tokenFile())
	l.check(err)
	l.check(errors.Join(os.WriteFile(filepath.Join(mount, "token"), token, 0o600), os.WriteFile(filepath.Join(mount, "ca.crt"), l.ca, 0o600)))

	c := &pod.Containers[0]
	moved := strings.NewReplacer(l.mountConfig(pod, c)...)
	// The kubelet gives the cluster IP; there is no other proxy here that would serve it.
	host, port, err := net.SplitHostPort(apiAddr)
	l.check(err)
	env := []string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
	for _, from := range c.EnvFrom {
		config, err := l.admin.CoreV1().ConfigMaps(d.Namespace).Get(l.ctx, from.ConfigMapRef.Name, metav1.GetOptions{})
		l.check(err)
		for name, value := range config.Data {
			env = append(env, name+"="+value)
		}
	}
	args := containerArgs(c)
	for i, arg := range args {
		args[i] = moved.Replace(strings.ReplaceAll(arg, "$(NODE_NAME)", "node"))
	}
	l.launchProgram("setpriv", env, args...)
	probe := c.ReadinessProbe.HTTPGet
	l.check(l.sluice.Healthy(l.ctx, fmt.Sprintf("http://127.0.0.1:%s%s", probe.Port.String(), probe.Path)))
}

// mountConfig writes the ConfigMaps that a container mounts to folders, and returns
// pairs of the path that the container has and the one that it is really at.
func (l *lab) mountConfig(pod *corev1.PodSpec, c *corev1.Container) (moved []string) {
	l.t.Helper()
	root, followed := l.t.TempDir(), false
	for _, m := range c.VolumeMounts {
		at := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if at < 0 {
			l.t.Fatalf("there is no volume %s", m.Name)
		}
		if pod.Volumes[at].ConfigMap == nil {
			continue
		}
		config, err := l.admin.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(l.ctx, pod.Volumes[at].ConfigMap.Name, metav1.GetOptions{})
		l.check(err)
		folder, files := m.MountPath, config.Data
		if m.SubPath != "" { // one file of it
			folder, files = filepath.Dir(folder), map[string]string{m.SubPath: files[m.SubPath]}
		}
		followed = followed || m.SubPath == ""
		dir := filepath.Join(root, folder)
		l.check(os.MkdirAll(dir, 0o700))
		moved = append(moved, folder+"/", dir+"/")
		for name, text := range files {
			l.check(os.WriteFile(filepath.Join(dir, name), []byte(strings.NewReplacer(moved...).Replace(text)), 0o600))
		}
	}
	// What is followed changes on all nodes at once, unless its name does, as it does in base.
	if named := pod.Volumes[0].ConfigMap; len(moved) > 0 && followed && (named == nil || !strings.HasPrefix(named.Name, "sluice-")) {
		l.t.Errorf("a changed ConfigMap is seen by pods that run: %+v", named)
	}
	return moved
}
