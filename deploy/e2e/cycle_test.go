package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// flow is a client that keeps its UDP socket, so that the kernel's connection tracking
// and Sluice both know it from before.
type flow struct {
	*lab
	net.Conn
}

func (l *lab) newFlow(from *testbed.Host, addr string) *flow {
	l.t.Helper()
	c, err := from.Dial(l.ctx, "udp", addr)
	l.check(err)
	l.t.Cleanup(func() { _ = c.Close() })
	return &flow{l, c}
}

// expect asks until the pod answers. What is lost or refused meanwhile is the test's
// own making.
func (f *flow) expect(pod *testbed.Host) {
	f.t.Helper()
	var last string
	f.within(patience, func() string { return fmt.Sprintf("%s answers a client that asks on; last: %s", pod, last) }, func() bool {
		f.check(f.SetDeadline(time.Now().Add(100 * time.Millisecond)))
		buf := make([]byte, 100)
		_, err := f.Write([]byte("?"))
		n := 0
		if err == nil {
			n, err = f.Read(buf)
		}
		// What netfilter refuses or drops on its way out is EPERM to the sender.
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.EPERM) {
			f.t.Fatal(err)
		}
		last = fmt.Sprintf("%q, %v", buf[:n], err)
		return string(buf[:n]) == pod.Name
	})
}

// TestUDPWhileAPodCycles has a client ask on while the only pod of a Service is replaced
// by another, at each kind of address.
func TestUDPWhileAPodCycles(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods...)
	l.serve(9090, l.Pods...)
	l.start("--udp-timeout", "60s") // so that no flow ends by itself
	const lbStatus = "status: {loadBalancer: {ingress: [{ip: 203.0.113.40}]}}\n"
	l.apply(service("cluster", "ports: [{port: 80, protocol: UDP}]"),
		service("local", "internalTrafficPolicy: Local, ports: [{port: 80, protocol: UDP}]"),
		service("node", "type: NodePort, ports: [{port: 80, protocol: UDP}]"),
		service("balanced", "type: LoadBalancer, ports: [{port: 80, protocol: UDP}]")+lbStatus)
	flows := map[string]*flow{
		"cluster":         l.newFlow(l.Client, l.addr("cluster", 80)),
		"cluster of node": l.newFlow(l.Node, l.addr("cluster", 80)),
		"local":           l.newFlow(l.Pods[2], l.addr("local", 80)),
		"node":            l.newFlow(l.Client, l.nodePort("node")),
		"balanced":        l.newFlow(l.Client, "203.0.113.40:80"),
	}
	step := func(what string, port int, pod *testbed.Host, more string) {
		t.Helper()
		t.Log(what)
		for _, name := range []string{"cluster", "local", "node", "balanced"} {
			l.apply(sliceOf(name, 1, "IPv4", fmt.Sprintf("{port: %d, protocol: UDP}", port), endpoint(pod, more)))
		}
		if more == "" {
			for _, f := range flows {
				f.expect(pod)
			}
		}
	}
	step("endpoints that are not ready yet", 8080, l.Pods[0], ", conditions: {ready: false}")
	for _, f := range flows {
		for range 3 { // so that the kernel knows them before there is an endpoint
			_, _ = f.Write([]byte("?")) // refused
		}
	}
	step("they get ready", 8080, l.Pods[0], "")
	step("another pod", 8080, l.Pods[1], "")
	step("another port of the same pod", 9090, l.Pods[1], "")
	step("no endpoint", 8080, l.Pods[1], ", conditions: {ready: false}")
	step("the first pod again", 8080, l.Pods[0], "")
}

// TestRollingUpdate replaces the pods of a Service one by one, as a Deployment does,
// while clients connect at each kind of address.
func TestRollingUpdate(t *testing.T) {
	for _, policy := range []string{"Cluster", "Local"} {
		t.Run(policy, func(t *testing.T) {
			l := newLab(t)
			const terminating = ", conditions: {ready: false, serving: true, terminating: true}"
			servers := []*testbed.Server{testbed.Keep(l.t)(l.Pods[0].WhoTCP(":8080")), nil, nil}
			l.apply(service("web", "type: LoadBalancer, externalTrafficPolicy: "+policy+", ports: [{port: 80}]")+
				"status: {loadBalancer: {ingress: [{ip: 203.0.113.50}]}}\n", slice("web", 1, 8080, "TCP", l.Pods[0]))
			l.start()
			addrs := []string{l.addr("web", 80), l.nodePort("web"), "203.0.113.50:80"}
			var loads []*load
			for _, addr := range addrs {
				l.expect(l.Client, "tcp", addr, l.Pods[0])
				loads = append(loads, l.newLoad(0, "", addr))
			}
			for round := range 6 {
				old, next := round%3, (round+1)%3
				servers[next] = testbed.Keep(l.t)(l.Pods[next].WhoTCP(":8080"))
				l.apply(sliceOf("web", 1, "IPv4", "{port: 8080}", endpoint(l.Pods[old], ""), endpoint(l.Pods[next], "")))
				l.apply(sliceOf("web", 1, "IPv4", "{port: 8080}", endpoint(l.Pods[old], terminating), endpoint(l.Pods[next], "")))
				for _, addr := range addrs {
					l.expect(l.Client, "tcp", addr, l.Pods[next])
				}
				l.check(servers[old].Close())
				l.apply(slice("web", 1, 8080, "TCP", l.Pods[next]))
			}
			for _, load := range loads {
				load.stop()
				load.expectNoLoss()
			}
		})
	}
}
