package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-lb/sluice/bench/testbed"
)

const (
	manyServices = 5000
	perService   = 10 // endpoints
	writers      = 32 // requests to the API server at once
)

// BenchmarkScale measures Sluice in a cluster of 5,000 Services and 50,000 endpoints:
// the time from its start until it is ready, its memory, the time from a watch event
// until clients notice, and what a burst of a thousand events comes to. doc.go has
// what it has shown.
//
//	make bin/kube-apiserver build && cd deploy/e2e && go test -run '^$' -bench Scale -benchtime 1x .
func BenchmarkScale(b *testing.B) {
	l := newLab(b)
	l.serve(8080, l.Pods...)
	l.inParallel(manyServices, func(i int) error {
		_, err := l.admin.CoreV1().Services(l.namespace).Create(l.ctx, manyService(i), metav1.CreateOptions{})
		if err == nil {
			_, err = l.admin.DiscoveryV1().EndpointSlices(l.namespace).Create(l.ctx, manySlice(i, 0, l.Pods[0]), metav1.CreateOptions{})
		}
		return err
	})
	for range b.N {
		start := time.Now()
		l.start()
		ready := time.Since(start)
		b.ReportMetric(float64(ready.Milliseconds()), "ms-to-ready")
		addr := l.addr("many-0", 80)
		l.expect(l.Client, "tcp", addr, l.Pods[0])
		b.ReportMetric(l.status("VmRSS"), "MiB-at-ready")

		var took []time.Duration
		for i := range 20 {
			took = append(took, l.timeChange(addr, i+1, l.Pods[(i+1)%2]))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-median-change")
		b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "ms-longest-change")

		before := l.metric(`sluice_syncs_total{result="ok"}`)
		start = time.Now()
		l.inParallel(1000, func(i int) error {
			_, err := l.admin.DiscoveryV1().EndpointSlices(l.namespace).Update(l.ctx, manySlice(i, 100, l.Pods[2]), metav1.UpdateOptions{})
			return err
		})
		l.expect(l.Client, "tcp", l.addr("many-999", 80), l.Pods[2])
		b.ReportMetric(time.Since(start).Seconds(), "s-for-1000-events")
		b.ReportMetric(l.metric(`sluice_syncs_total{result="ok"}`)-before, "tables-for-1000-events")
		b.ReportMetric(l.status("VmRSS"), "MiB-after-changes")
		b.ReportMetric(l.status("VmHWM"), "MiB-most")
		l.stop(syscall.SIGKILL)
	}
	b.ReportMetric(0, "ns/op") // says nothing here
}

func manyService(i int) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("many-%d", i), Labels: map[string]string{"app": "many"}},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": fmt.Sprintf("many-%d", i)}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
}

// manySlice is as the slice controller writes it. Of its endpoints only the pod exists;
// the others are not ready.
func manySlice(i, version int, pod *testbed.Host) *discoveryv1.EndpointSlice {
	service := fmt.Sprintf("many-%d", i)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:        service + "-x7k2p",
			Labels:      map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io", "app": "many"},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Unix(int64(version), 0).UTC().Format(time.RFC3339)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
	for e := range perService {
		endpoint := discoveryv1.Endpoint{
			Addresses:  []string{pod.Addr4.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: new(e == 0), Serving: new(e == 0), Terminating: new(false)},
			NodeName:   new(fmt.Sprintf("node-%d", e)),
			Zone:       new(fmt.Sprintf("zone-%d", e%3)),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "many", Name: fmt.Sprintf("%s-6f7d8c9b5-%05d", service, e),
				UID: "3f0c1d52-8e0b-4f1c-9d5e-2a6b7c8d9e0f"},
		}
		if e > 0 {
			endpoint.Addresses = []string{fmt.Sprintf("10.%d.%d.%d", 100+e, i/250, i%250+1)}
		}
		slice.Endpoints = append(slice.Endpoints, endpoint)
	}
	return slice
}

// inParallel does something for each number below n, a few at once.
func (l *lab) inParallel(n int, do func(int) error) {
	l.t.Helper()
	numbers := make(chan int)
	var workers sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for range writers {
		workers.Go(func() {
			for i := range numbers {
				if err := do(i); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	workers.Wait()
	if len(errs) > 0 {
		l.t.Fatalf("%d of %d failed: %v", len(errs), n, errors.Join(errs[:min(3, len(errs))]...))
	}
}

// timeChange has Service many-0 be answered by a pod, and returns the time from when a
// watch reports it until a client's connection is answered by it.
func (l *lab) timeChange(addr string, version int, pod *testbed.Host) time.Duration {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.ctx, patience)
	defer cancel()
	client := l.admin.DiscoveryV1().EndpointSlices(l.namespace)
	now, err := client.Get(ctx, "many-0-x7k2p", metav1.GetOptions{})
	l.check(err)
	watch, err := client.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=many-0-x7k2p", ResourceVersion: now.ResourceVersion})
	l.check(err)
	defer watch.Stop()
	reported := make(chan time.Time, 1)
	go func() {
		if _, ok := <-watch.ResultChan(); ok {
			reported <- time.Now()
		}
	}()
	_, err = client.Update(ctx, manySlice(0, version, pod), metav1.UpdateOptions{})
	l.check(err)
	for {
		name, err := whoWithin(soon, l.Client, "tcp", addr)
		if noticed := time.Now(); err == nil && name == pod.Name {
			return noticed.Sub(<-reported)
		}
		l.check(ctx.Err())
	}
}

// status returns a line of the program's /proc/PID/status, in MiB.
func (l *lab) status(name string) float64 {
	l.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", l.sluice.Pid()))
	l.check(err)
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
			l.check(err)
			return float64(kib) / 1024
		}
	}
	l.t.Fatalf("no %s in %s", name, text)
	return 0
}
