package e2e

import (
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-lb/sluice/internal/testbed"
)

const (
	writers = 32 // requests to the API server at once

	// Ports of the pods: where they answer with their names, and what load asks.
	whoPort, loadPort = 8080, 8081

	// perLoaded is of how many Services one has endpoints that load can ask.
	perLoaded = 100
)

// many is a cluster of Services whose endpoints, all of them ready, exist only where clients ask: those of Service
// 0, which changes, of the last one, and of each hundredth, which load asks.
type many struct {
	*lab
	services, endpoints int
	written             int // Services so far
}

// grow writes further Services and their EndpointSlices.
func (m *many) grow(services int) {
	m.t.Helper()
	from := m.written
	m.services, m.written = services, services
	byAPI := services - from
	if byAPI > bulkFrom {
		byAPI = 2
		defer m.bulk(from, from+byAPI)
	}
	m.inParallel(byAPI, func(i int) error {
		_, err := m.admin.CoreV1().Services(m.namespace).Create(m.ctx, manyService(from+i), metav1.CreateOptions{})
		if err == nil {
			_, err = m.admin.DiscoveryV1().EndpointSlices(m.namespace).Create(m.ctx, m.slice(from+i, 0, m.Pods[1]), metav1.CreateOptions{})
		}
		return err
	})
}

func manyName(i int) string { return fmt.Sprintf("many-%d", i) }

func manyService(i int) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: manyName(i), Labels: map[string]string{"app": "many"}},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": manyName(i)}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
}

// sliceSuffix ends the name of a slice, as the slice controller gives one.
const sliceSuffix = "-x7k2p"

// loaded reports whether load asks a Service.
func (m *many) loaded(i int) bool { return i%perLoaded == 1 }

// alias is address e of the first pod, which has one for each endpoint.
func alias(e int) string { return fmt.Sprintf("10.244.1.%d", 100+e) }

// slice is as the slice controller writes it. Its first endpoint is what changes with the version: a pod where
// endpoints exist.
func (m *many) slice(i, version int, pod *testbed.Host) *discoveryv1.EndpointSlice {
	port, exists := int32(whoPort), i == 0 || i == m.services-1
	if m.loaded(i) {
		port, exists = loadPort, true
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:        manyName(i) + sliceSuffix,
			Labels:      map[string]string{discoveryv1.LabelServiceName: manyName(i), discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io", "app": "many"},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Unix(int64(version), 0).UTC().Format(time.RFC3339)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: &port, Protocol: new(corev1.ProtocolTCP)}},
	}
	for e := range m.endpoints {
		addr, node := absent(i, 100+e), fmt.Sprintf("node-%d", e)
		switch {
		case exists && e == 0 && !m.loaded(i):
			addr, node = pod.Addr4.String(), "node"
		case exists:
			addr, node = alias(e), "node"
		case e == 0:
			addr = absent(i, 200+version%44) // without the pods' networks
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{addr},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			NodeName:   &node,
			Zone:       new(fmt.Sprintf("zone-%d", e%3)),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "many", Name: fmt.Sprintf("%s-6f7d8c9b5-%05d", manyName(i), e),
				UID: "3f0c1d52-8e0b-4f1c-9d5e-2a6b7c8d9e0f"},
		})
	}
	return slice
}

// absent returns the address of an endpoint of Service i that does not exist.
func absent(i, second int) string {
	return fmt.Sprintf("%d.%d.%d.%d", 10+i/perNetwork, second, i/250%250, i%250+1)
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
