package config

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/manifest"
)

// deploy is the folder of the repository with what is applied to clusters.
const deploy = "../../../../deploy"

// kustomize is the program that kubectl 1.34 has built in. deploy/e2e renders with those of other versions, too.
const kustomize = "sigs.k8s.io/kustomize/kustomize/v5@v5.7.1"

// installed has kustomize in a folder that TestMain removes: "go run" would look at all its packages each time.
var installed = sync.OnceValues(func() (program string, err error) {
	if programs, err = os.MkdirTemp("", "config-"); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "install", kustomize)
	cmd.Env = append(os.Environ(), "GOBIN="+programs)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("install %s: %w\n%s", kustomize, err, out)
	}
	return filepath.Join(programs, "kustomize"), nil
})

var programs string

func TestMain(m *testing.M) {
	code := m.Run()
	if programs != "" {
		os.RemoveAll(programs)
	}
	os.Exit(code)
}

// kinds are the objects that are in deploy, by apiVersion and kind.
var kinds = map[string]func() any{
	"v1 Service":                                      func() any { return new(corev1.Service) },
	"v1 ServiceAccount":                               func() any { return new(corev1.ServiceAccount) },
	"v1 ConfigMap":                                    func() any { return new(corev1.ConfigMap) },
	"apps/v1 DaemonSet":                               func() any { return new(appsv1.DaemonSet) },
	"discovery.k8s.io/v1 EndpointSlice":               func() any { return new(discoveryv1.EndpointSlice) },
	"rbac.authorization.k8s.io/v1 ClusterRole":        func() any { return new(rbacv1.ClusterRole) },
	"rbac.authorization.k8s.io/v1 ClusterRoleBinding": func() any { return new(rbacv1.ClusterRoleBinding) },
	"monitoring.coreos.com/v1 PrometheusRule":         func() any { return new(map[string]any) }, // no module of Kubernetes has it
}

// objects decodes documents as strictly as the API server can.
func objects(t *testing.T, name string, data []byte) (list []any) {
	t.Helper()
	for i, doc := range bytes.Split(data, []byte("\n---\n")) {
		var kind struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			t.Fatalf("%s, document %d: %v", name, i+1, err)
		}
		if strings.HasPrefix(kind.APIVersion, "kustomize.") || bytes.Contains(doc, []byte("$patch:")) {
			continue // read by kustomize itself
		}
		make, ok := kinds[kind.APIVersion+" "+kind.Kind]
		if !ok {
			t.Errorf("%s, document %d: %s %s is of no kind that is known here", name, i+1, kind.APIVersion, kind.Kind)
			continue
		}
		o := make()
		if err := yaml.UnmarshalStrict(doc, o); err != nil {
			t.Errorf("%s, document %d: %v", name, i+1, err)
		}
		list = append(list, o)
	}
	return list
}

// TestManifests: every file in deploy is what it says it is.
func TestManifests(t *testing.T) {
	n := 0
	err := filepath.WalkDir(deploy, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"e2e", "conformance", "helm", "release"}, d.Name()):
			return fs.SkipDir
		case filepath.Ext(path) != ".yaml", strings.HasPrefix(d.Name(), "rules"): // those are read by Prometheus itself
			return nil
		case d.Name() == "short.yaml": // a form of manifests
			of, _ := (&manifest.Loader{Paths: []string{path}}).Load()
			if len(of.Problems) > 0 || of.Objects.Len() == 0 {
				t.Errorf("%s: %v", path, of.Problems)
			}
			return nil
		}
		data, err := os.ReadFile(path)
		n += len(objects(t, path, data))
		return err
	})
	if err != nil || n < 10 {
		t.Errorf("%d objects, %v", n, err)
	}
}

// rendered is what an overlay comes to.
type rendered struct {
	daemonSet *appsv1.DaemonSet
	configs   map[string]*corev1.ConfigMap
	accounts  []string
	roles     []*rbacv1.ClusterRole
	bindings  []*rbacv1.ClusterRoleBinding
}

func render(t *testing.T, overlay string) (r rendered) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs no race detector: it runs another program")
	}
	program, err := installed()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, "build", filepath.Join(deploy, overlay))
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kustomize build %s: %v\n%s", overlay, err, stderr.String())
	}
	if strings.Contains(stderr.String(), "Warning") {
		t.Errorf("kustomize build %s: %s", overlay, stderr.String())
	}
	r.configs = map[string]*corev1.ConfigMap{}
	for _, o := range objects(t, overlay, out) {
		switch o := o.(type) {
		case *appsv1.DaemonSet:
			if r.daemonSet != nil {
				t.Errorf("%s has two DaemonSets", overlay)
			}
			r.daemonSet = o
		case *corev1.ConfigMap:
			r.configs[o.Name] = o
		case *corev1.ServiceAccount:
			r.accounts = append(r.accounts, o.Name)
		case *rbacv1.ClusterRole:
			r.roles = append(r.roles, o)
		case *rbacv1.ClusterRoleBinding:
			r.bindings = append(r.bindings, o)
		default:
			t.Errorf("%s has a %T", overlay, o)
		}
	}
	if r.daemonSet == nil {
		t.Fatalf("%s has no DaemonSet", overlay)
	}
	return r
}

// kubeadm is the ConfigMap that kubeadm 1.36 makes of its defaults, the parts that count.
func kubeadm(t *testing.T) *corev1.ConfigMap {
	t.Helper()
	text, err := os.ReadFile("testdata/default.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.ConfigMap{Data: map[string]string{
		"config.conf":     strings.ReplaceAll(string(text), "KUBECONFIG", "/var/lib/kube-proxy/kubeconfig.conf"),
		"kubeconfig.conf": "apiVersion: v1\nkind: Config\n",
	}}
}

// TestOverlays: each overlay renders, holds together, and starts a Sluice that means
// what the overlay promises.
func TestOverlays(t *testing.T) {
	for overlay, want := range map[string]struct {
		name, proxyName string
		variant         string // of the image
		healthz         string
		mode            string                       // of the data path
		extra           map[string]*corev1.ConfigMap // in the cluster before
	}{
		"base":                   {name: "sluice", mode: ModeUserspace, healthz: "0.0.0.0:10256"},
		"overlays/whole-cluster": {name: "sluice", mode: ModeUserspace, healthz: "0.0.0.0:10256"},
		"overlays/beside":        {name: "sluice", mode: ModeUserspace, proxyName: "sluice", healthz: "0.0.0.0:10356"},
		// The mode in that ConfigMap is empty, and that of the proxy before it kept the client's address.
		"overlays/kubeadm": {name: "kube-proxy", variant: variant, mode: ModeIPTables, healthz: "0.0.0.0:10256",
			extra: map[string]*corev1.ConfigMap{"kube-proxy": kubeadm(t)}},
	} {
		t.Run(overlay, func(t *testing.T) {
			r := render(t, overlay)
			for name, c := range want.extra {
				r.configs[name] = c
			}
			d, pod := r.daemonSet, &r.daemonSet.Spec.Template
			if d.Name != want.name || d.Namespace != "kube-system" || pod.Spec.ServiceAccountName != want.name {
				t.Errorf("DaemonSet %s/%s of %s", d.Namespace, d.Name, pod.Spec.ServiceAccountName)
			}
			for k, v := range d.Spec.Selector.MatchLabels {
				if pod.Labels[k] != v {
					t.Errorf("the selector %s=%s does not match the pods' labels %v", k, v, pod.Labels)
				}
			}
			if known := len(want.extra) > 0; slices.Contains(r.accounts, want.name) == known || (len(r.roles) == 1) == known || (len(r.bindings) == 1) == known {
				t.Errorf("service accounts %v, %d roles, %d bindings", r.accounts, len(r.roles), len(r.bindings))
			}
			checkPod(t, &pod.Spec)
			checkLabels(t, r, want.variant)
			checkMounts(t, r, want.extra)
			for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
				cfg := parseContainer(t, r, &c)
				if cfg.DataPath.Mode != want.mode && !cfg.Action.InitOnly || cfg.Node.Name != "node-1" || cfg.Document.HealthzBindAddress != want.healthz || cfg.Document.BindAddressHardFail {
					t.Errorf("%s: %+v", c.Name, cfg)
				}
				if cfg.Action.InitOnly {
					continue
				}
				if cfg.Source.ServiceProxyName != want.proxyName || !cfg.FromAPI() {
					t.Errorf("serves Services of %q", cfg.Source.ServiceProxyName)
				}
				if grace := time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second; grace < cfg.Process.DrainTimeout+10*time.Second {
					t.Errorf("%v of grace for %v of drain", grace, cfg.Process.DrainTimeout)
				}
				for path, probe := range map[string]*corev1.Probe{"/livez": c.LivenessProbe, "/healthz": c.ReadinessProbe} {
					if h := probe.HTTPGet; h.Path != path || h.Host != "127.0.0.1" || !strings.HasSuffix(want.healthz, ":"+strconv.Itoa(h.Port.IntValue())) {
						t.Errorf("probe %+v, want %s of %s", h, path, want.healthz)
					}
				}
			}
		})
	}
}

// checkLabels holds that the objects, and the pods, have the labels that Kubernetes recommends, and that the version
// among them is that of the image, of which they run a variant. It is for more than one architecture.
func checkLabels(t *testing.T, r rendered, variant string) {
	t.Helper()
	pod := &r.daemonSet.Spec.Template
	all := [][2]any{{"DaemonSet", r.daemonSet.Labels}, {"pods", pod.Labels}}
	for name, c := range r.configs {
		if name != "kube-proxy" { // kubeadm's
			all = append(all, [2]any{"ConfigMap " + name, c.Labels})
		}
	}
	for _, o := range all {
		labels := o[1].(map[string]string)
		for _, name := range []string{"name", "component", "part-of"} {
			if labels["app.kubernetes.io/"+name] == "" {
				t.Errorf("%s: no label app.kubernetes.io/%s among %v", o[0], name, labels)
			}
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if v := pod.Labels["app.kubernetes.io/version"]; v == "" || c.Image != image+":"+v+variant {
			t.Errorf("%s: version %q runs %s, want its variant %q", c.Name, v, c.Image, variant)
		}
		if c.ImagePullPolicy != "" || strings.HasSuffix(c.Image, ":latest") {
			t.Errorf("%s: an image that was imported to the node would be pulled all the same", c.Name)
		}
	}
	if s := pod.Spec.NodeSelector; len(s) != 1 || s[corev1.LabelOSStable] != "linux" {
		t.Errorf("the image goes to nodes %v", s)
	}
}

const (
	image   = "localhost/sluice" // the name that "make image" gives, without the tag
	variant = "-iptables"        // what the tag of the image with iptables ends with
)

// checkMounts holds that no pod sees its configuration change: it rolls out by new pods, since the name of a
// ConfigMap has a suffix of its content, or, for one of others, since files of it are mounted one by one.
func checkMounts(t *testing.T, r rendered, others map[string]*corev1.ConfigMap) {
	t.Helper()
	pod := &r.daemonSet.Spec.Template.Spec
	hashed := regexp.MustCompile(`-[0-9a-z]{10}$`)
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, m := range c.VolumeMounts {
			for _, v := range pod.Volumes {
				if v.Name != m.Name || v.ConfigMap == nil {
					continue
				}
				if _, foreign := others[v.ConfigMap.Name]; foreign && m.SubPath == "" || !foreign && !hashed.MatchString(v.ConfigMap.Name) {
					t.Errorf("%s sees changes of the ConfigMap %s at %s", c.Name, v.ConfigMap.Name, m.MountPath)
				}
			}
		}
		for _, from := range c.EnvFrom {
			if !hashed.MatchString(from.ConfigMapRef.Name) {
				t.Errorf("%s: the ConfigMap %s has no suffix", c.Name, from.ConfigMapRef.Name)
			}
		}
	}
}

// TestUninstall: the overlay runs --cleanup on every node that Sluice's own pods run on, with no more rights than
// those, and its pods are ready only after that.
func TestUninstall(t *testing.T) {
	r := render(t, "overlays/uninstall")
	serving := render(t, "base").daemonSet.Spec.Template.Spec
	checkLabels(t, r, "")
	pod := &r.daemonSet.Spec.Template.Spec
	if !pod.HostNetwork || pod.PriorityClassName != serving.PriorityClassName || *pod.AutomountServiceAccountToken ||
		!maps.Equal(pod.NodeSelector, serving.NodeSelector) || !cmp.Equal(pod.Tolerations, serving.Tolerations) {
		t.Errorf("pod %+v", pod)
	}
	if len(pod.InitContainers) != 1 || len(pod.Containers) != 1 {
		t.Fatalf("containers %+v, %+v", pod.InitContainers, pod.Containers)
	}
	cleaning, done := pod.InitContainers[0], pod.Containers[0]
	if cfg := parseContainer(t, r, &cleaning); !cfg.Action.Cleanup || !slices.Equal(done.Args, []string{"wait"}) {
		t.Errorf("%q runs, then %q", cleaning.Args, done.Args)
	}
	c := cleaning.SecurityContext
	want := &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN", "NET_RAW"}}
	if diff := cmp.Diff(want, c.Capabilities); diff != "" || c.Privileged != nil || *c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem {
		t.Errorf("security context %+v (-want +got)\n%s", c, diff)
	}
	if c := done.SecurityContext; len(c.Capabilities.Add) > 0 || *c.RunAsUser == 0 || *c.AllowPrivilegeEscalation {
		t.Errorf("who waits may do %+v", c)
	}
}

// parseContainer starts the program as the kubelet does, as far as its flags.
func parseContainer(t *testing.T, r rendered, c *corev1.Container) Config {
	t.Helper()
	dir := t.TempDir()
	moved := func(s string) string { return s }
	for _, m := range c.VolumeMounts {
		for _, v := range r.daemonSet.Spec.Template.Spec.Volumes {
			if v.Name != m.Name || v.ConfigMap == nil {
				continue
			}
			config := r.configs[v.ConfigMap.Name]
			if config == nil {
				t.Fatalf("there is no ConfigMap %s", v.ConfigMap.Name)
			}
			mounted := config.Data
			at := m.MountPath
			if m.SubPath != "" {
				at = filepath.Dir(at)
				mounted = map[string]string{m.SubPath: config.Data[m.SubPath]}
			}
			moved = func(s string) string { return strings.ReplaceAll(s, at+"/", dir+"/") }
			for name, text := range mounted {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(moved(text)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for _, from := range c.EnvFrom {
		if r.configs[from.ConfigMapRef.Name] == nil {
			t.Errorf("there is no ConfigMap %s", from.ConfigMapRef.Name)
		}
	}
	var args []string
	for _, a := range c.Args {
		args = append(args, strings.ReplaceAll(moved(a), "$(NODE_NAME)", "node-1"))
	}
	cfg, err := Parse(args)
	if err != nil {
		t.Fatalf("container %s with %q: %v", c.Name, args, err)
	}
	if len(cfg.Warnings) > 0 {
		t.Errorf("container %s: %q", c.Name, cfg.Warnings)
	}
	return cfg
}

// checkPod holds what a pod may do on a node to what it needs.
func checkPod(t *testing.T, pod *corev1.PodSpec) {
	t.Helper()
	if !pod.HostNetwork || pod.HostPID || pod.HostIPC || pod.PriorityClassName != "system-node-critical" || pod.DNSPolicy != corev1.DNSDefault ||
		*pod.SecurityContext.RunAsUser != 0 || pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("pod %+v", pod)
	}
	for _, v := range pod.Volumes {
		if v.HostPath != nil && v.HostPath.Path != "/run/xtables.lock" && v.HostPath.Path != "/run/sluice" {
			t.Errorf("the pod sees %s of the node", v.HostPath.Path)
		}
	}
	if len(pod.Containers) != 1 {
		t.Fatalf("%d containers", len(pod.Containers))
	}
	c := pod.Containers[0].SecurityContext
	want := &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN", "NET_RAW", "NET_BIND_SERVICE", "SYS_RESOURCE"}}
	if diff := cmp.Diff(want, c.Capabilities); diff != "" || c.Privileged != nil || *c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem {
		t.Errorf("security context %+v (-want +got)\n%s", c, diff)
	}
	for _, init := range pod.InitContainers {
		if !slices.Contains(init.Args, "--init-only") || !*init.SecurityContext.ReadOnlyRootFilesystem {
			t.Errorf("init container %s has privileges for more than --init-only", init.Name)
		}
	}
}

// TestRights: the role allows what Sluice asks for, which deploy/e2e shows to be
// enough, and nothing else.
func TestRights(t *testing.T) {
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"services", "nodes"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"servicecidrs"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}
	r := render(t, "base")
	if diff := cmp.Diff(want, r.roles[0].Rules); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	b := r.bindings[0]
	if b.RoleRef.Name != r.roles[0].Name || len(b.Subjects) != 1 || b.Subjects[0].Name != r.accounts[0] || b.Subjects[0].Namespace != r.daemonSet.Namespace {
		t.Errorf("binding %+v", b)
	}
}
