package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-lb/sluice/internal/testbed"
)

var (
	sluice    = flag.String("sluice", "../../bin/sluice", "`PATH` of the program to test")
	apiserver = flag.String("apiserver", "../../bin/kube-apiserver", "`PATH` of the API server to test with")
	kubeproxy = flag.String("kubeproxy", "../../bin/kube-proxy", "`PATH` of the kube-proxy to test beside")
	kustomize = flag.String("kustomize", "../../bin/kustomize", "`PATH` of a folder with kustomize, by version")
	images    = flag.String("images", "../../bin", "`PATH` of the folder with the images to import")
	etcd      = flag.String("etcd", "etcd", "`PATH` of the etcd to test with")
	outage    = flag.Duration("outage", 10*time.Second, "how `LONG` the control plane is away in TestWatchControlPlaneAway")
)

// lab is the cluster of one test: a namespace in the API server, and Sluice on the node.
type lab struct {
	*control
	t         testing.TB
	ctx       context.Context
	namespace string
	dir       string           // of the kubeconfig and the token
	sluice    *testbed.Process // nil when it does not run
	log       testbed.Buffer   // of all that ran

	audited        int64 // length of the API server's record when the test began
	mayBeForbidden bool  // the test takes rights away
	mortal         bool  // the control plane ends with the lab, which leaves its Services there

	as *account // whom Sluice runs as; nil for whom the shipped manifests say
}

var labs atomic.Int32 // gives each lab its namespace

// newLab makes a lab without Sluice running yet. When the test ends its Services are
// deleted, and what Sluice has left on the node.
func newLab(t testing.TB) *lab {
	t.Helper()
	l := &lab{control: newControl(t), t: t, ctx: context.Background(), dir: t.TempDir()}
	l.namespace = fmt.Sprintf("lab-%d", labs.Add(1))
	_, err := l.admin.CoreV1().Namespaces().Create(l.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: l.namespace}}, metav1.CreateOptions{})
	l.check(err)
	if info, err := os.Stat(l.path("audit.log")); err == nil {
		l.audited = info.Size()
	}
	l.rotateToken()
	l.check(os.WriteFile(l.kubeconfigFile(), []byte(l.kubeconfig(l.tokenFile())), 0o600))
	t.Cleanup(func() {
		if l.sluice != nil {
			l.sluice.Stop(syscall.SIGKILL)
		}
		if t.Failed() {
			t.Logf("Sluice's log:\n%s", l.log.String())
			t.Logf("the API server's log ends with:\n%s", l.tail("apiserver.log"))
		}
		out, err := l.Node.Command(l.ctx, *sluice, "--cleanup").CombinedOutput()
		if err != nil {
			t.Errorf("clean up: %v: %s", err, out)
		}
		if !l.mortal {
			l.deleteAll()
		}
		l.checkRequests()
	})
	return l
}

func (l *lab) check(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) kubeconfigFile() string { return filepath.Join(l.dir, "kubeconfig") }
func (l *lab) tokenFile() string      { return filepath.Join(l.dir, "token") }

// rotateToken gives Sluice a new token, and returns the Secret whose deletion revokes it.
func (l *lab) rotateToken() (secret string) {
	l.t.Helper()
	a, err := l.account()
	l.check(err)
	secret = fmt.Sprintf("%s-%d", l.namespace, time.Now().UnixNano())
	token, err := l.token(l.ctx, a, secret)
	l.check(err)
	l.check(os.WriteFile(l.tokenFile()+".new", []byte(token), 0o600))
	l.check(os.Rename(l.tokenFile()+".new", l.tokenFile()))
	return secret
}

// deleteAll deletes the Services and EndpointSlices of the namespace.
func (l *lab) deleteAll() {
	one := int64(0)
	options := metav1.DeleteOptions{GracePeriodSeconds: &one}
	if err := errors.Join(
		l.admin.DiscoveryV1().EndpointSlices(l.namespace).DeleteCollection(l.ctx, options, metav1.ListOptions{}),
		l.admin.CoreV1().RESTClient().Delete().Namespace(l.namespace).Resource("services").Body(&options).Do(l.ctx).Error(),
	); err != nil {
		l.t.Error(err)
	}
}

// launch starts Sluice on the node and does not wait.
func (l *lab) launch(env []string, args ...string) {
	l.t.Helper()
	l.launchProgram(*sluice, env, args...)
}

// launchProgram is launch by way of another program.
func (l *lab) launchProgram(name string, env []string, args ...string) {
	l.t.Helper()
	cmd := l.Node.Command(context.Background(), name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &l.log, &l.log
	p, err := cmd.Launch()
	l.check(err)
	l.sluice = p
}

// start runs Sluice until it says that it is healthy.
func (l *lab) start(args ...string) {
	l.t.Helper()
	l.launch(nil, append([]string{"--kubeconfig", l.kubeconfigFile(), "--hostname-override", "node"}, args...)...)
	l.awaitHealthy()
}

func (l *lab) awaitHealthy() { l.t.Helper(); l.check(l.sluice.Healthy(l.ctx, testbed.HealthURL)) }

// stop ends Sluice by a signal and returns its exit code.
func (l *lab) stop(s syscall.Signal) (exitCode int) {
	l.t.Helper()
	exitCode = l.sluice.Stop(s)
	l.sluice = nil
	return exitCode
}

// metric returns the value of a series, named as /metrics writes it.
func (l *lab) metric(series string) float64 {
	l.t.Helper()
	_, page := l.Node.Page(testbed.MetricsURL)
	return testbed.Metric(l.t, page, series)
}

// eventually waits until what is true, for what no event reports.
func (l *lab) eventually(what string, is func() bool) {
	l.t.Helper()
	l.within(patience, func() string { return what }, is)
}

// within is eventually for longer waits, and with words that are chosen at the end.
func (l *lab) within(d time.Duration, what func() string, is func() bool) {
	l.t.Helper()
	err := testbed.Poll(l.ctx, d, "it", func() (bool, error) { return is(), nil })
	if err != nil {
		l.t.Fatalf("not within %v: %s", d, what())
	}
}

// apply writes Services and EndpointSlices to the API server, as kubectl apply does but
// for fields that are left out: those go. What the server has chosen for a Service
// stays.
func (l *lab) apply(documents ...string) {
	l.t.Helper()
	for document := range strings.SplitSeq(strings.Join(documents, "---\n"), "---\n") {
		var meta metav1.PartialObjectMetadata
		l.check(yaml.Unmarshal([]byte(document), &meta))
		switch meta.Kind {
		case "Service":
			var svc corev1.Service
			l.check(yaml.UnmarshalStrict([]byte(document), &svc))
			l.applyService(&svc)
		case "EndpointSlice":
			var slice discoveryv1.EndpointSlice
			l.check(yaml.UnmarshalStrict([]byte(document), &slice))
			client := l.admin.DiscoveryV1().EndpointSlices(l.namespace)
			if _, err := client.Create(l.ctx, &slice, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
				_, err = client.Update(l.ctx, &slice, metav1.UpdateOptions{})
				l.check(err)
			} else {
				l.check(err)
			}
		default:
			l.t.Fatalf("kind %q in %s", meta.Kind, document)
		}
	}
}

func (l *lab) applyService(svc *corev1.Service) {
	l.t.Helper()
	client := l.admin.CoreV1().Services(l.namespace)
	status := svc.Status
	now, err := client.Get(l.ctx, svc.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		now, err = client.Create(l.ctx, svc, metav1.CreateOptions{})
	case err == nil:
		svc.ResourceVersion = now.ResourceVersion
		if svc.Spec.ClusterIP == "" && svc.Spec.Type != corev1.ServiceTypeExternalName && now.Spec.Type != corev1.ServiceTypeExternalName {
			svc.Spec.ClusterIP, svc.Spec.ClusterIPs = now.Spec.ClusterIP, now.Spec.ClusterIPs
		}
		now, err = client.Update(l.ctx, svc, metav1.UpdateOptions{})
	}
	l.check(err)
	if len(status.LoadBalancer.Ingress) > 0 {
		now.Status = status
		_, err = client.UpdateStatus(l.ctx, now, metav1.UpdateOptions{})
		l.check(err)
	}
}

// service reads a Service back, with what the API server has chosen.
func (l *lab) service(name string) *corev1.Service {
	l.t.Helper()
	svc, err := l.admin.CoreV1().Services(l.namespace).Get(l.ctx, name, metav1.GetOptions{})
	l.check(err)
	return svc
}

func (l *lab) deleteService(name string) {
	l.t.Helper()
	l.check(l.admin.CoreV1().Services(l.namespace).Delete(l.ctx, name, metav1.DeleteOptions{}))
}

// label sets a label of a Service, or removes it if the value is empty.
func (l *lab) label(name, label, value string) {
	l.t.Helper()
	svc := l.service(name)
	if value == "" {
		delete(svc.Labels, label)
	} else {
		metav1.SetMetaDataLabel(&svc.ObjectMeta, label, value)
	}
	_, err := l.admin.CoreV1().Services(l.namespace).Update(l.ctx, svc, metav1.UpdateOptions{})
	l.check(err)
}

func (l *lab) deleteSlice(name string) {
	l.t.Helper()
	l.check(l.admin.DiscoveryV1().EndpointSlices(l.namespace).Delete(l.ctx, name, metav1.DeleteOptions{}))
}
