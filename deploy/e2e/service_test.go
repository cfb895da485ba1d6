package e2e

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// nodePort returns where a Service's node port is on the node's main address.
func (l *lab) nodePort(name string) string {
	l.t.Helper()
	return net.JoinHostPort(l.Node.Addr4.String(), strconv.Itoa(int(l.service(name).Spec.Ports[0].NodePort)))
}

// TestPorts covers several ports, ports that are added and deleted, one port of two
// protocols, and endpoints that give one port different numbers.
func TestPorts(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods...)
	l.serve(9090, l.Pods...)
	l.start()
	both := "{name: a, port: 8080}, {name: b, port: 9090}"
	l.apply(service("multi", "ports: [{name: a, port: 80}, {name: b, port: 81}]"),
		sliceOf("multi", 1, "IPv4", "{name: a, port: 8080}", endpoint(l.Pods[0], "")),
		sliceOf("multi", 2, "IPv4", "{name: b, port: 9090}", endpoint(l.Pods[1], "")))
	l.expect(l.Client, "tcp", l.addr("multi", 80), l.Pods[0])
	l.expect(l.Client, "tcp", l.addr("multi", 81), l.Pods[1])
	l.apply(sliceOf("multi", 1, "IPv4", both, endpoint(l.Pods[0], "")))
	l.expect(l.Client, "tcp", l.addr("multi", 81), l.Pods[:2]...)
	l.apply(service("multi", "ports: [{name: b, port: 81}]"))
	l.expectRefused(l.Client, "tcp", l.addr("multi", 80))
	l.apply(service("multi", "ports: [{name: a, port: 80}, {name: b, port: 81}]"))
	l.expect(l.Client, "tcp", l.addr("multi", 80), l.Pods[0])

	l.apply(service("proto", "type: NodePort, ports: [{name: t, port: 53}, {name: u, port: 53, protocol: UDP}]"),
		sliceOf("proto", 1, "IPv4", "{name: t, port: 8080}, {name: u, port: 8080, protocol: UDP}", endpoint(l.Pods[2], "")))
	for _, network := range []string{"tcp", "udp"} {
		l.expect(l.Client, network, l.addr("proto", 53), l.Pods[2])
	}
	svc := l.service("proto")
	for i, network := range []string{"tcp", "udp"} {
		l.expect(l.Client, network, fmt.Sprintf("%s:%d", l.Node.Addr4, svc.Spec.Ports[i].NodePort), l.Pods[2])
	}

	// A named targetPort that pods give different numbers, in a slice for each.
	l.apply(service("named", "ports: [{port: 80}]"), slice("named", 1, 8080, "TCP", l.Pods[0]), slice("named", 2, 9090, "TCP", l.Pods[1]))
	l.expect(l.Client, "tcp", l.addr("named", 80), l.Pods[:2]...)
}

// TestComeAndGo covers Services that go and come back, at the same address and beside
// others with the same endpoints.
func TestComeAndGo(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods...)
	l.start()
	for i := range 3 {
		name := fmt.Sprintf("up-%d", i)
		l.apply(service(name, "ports: [{port: 80}]"), slice(name, 1, 8080, "TCP", l.Pods...))
		l.expect(l.Client, "tcp", l.addr(name, 80), l.Pods...)
	}
	addr := l.addr("up-1", 80)
	ip, _, _ := strings.Cut(addr, ":")
	l.deleteService("up-1")
	l.deleteSlice("up-1-1")
	l.expectSilence(l.Client, "tcp", addr)
	l.expect(l.Client, "tcp", l.addr("up-0", 80), l.Pods...)
	l.apply(service("up-1", "clusterIP: "+ip+", ports: [{port: 80}]"), slice("up-1", 1, 8080, "TCP", l.Pods[1]))
	l.expect(l.Client, "tcp", addr, l.Pods[1])
	l.deleteService("up-1")
	l.apply(service("other", "clusterIP: "+ip+", ports: [{port: 80}]"), slice("other", 1, 8080, "TCP", l.Pods[2]))
	l.expect(l.Client, "tcp", addr, l.Pods[2])
	l.expect(l.Client, "tcp", l.addr("up-2", 80), l.Pods...)
}

// TestServiceCIDRs: addresses where cluster IPs are from do not answer while no Service has them, even if a
// route leads to a host that would; those that another proxy serves are left alone.
func TestServiceCIDRs(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods[0])
	const first, second = "10.96.250.1", "10.97.250.1" // the API server's own CIDR, and one to come
	for _, addr := range []string{first, second} {
		l.onNode("ip route replace " + addr + " via " + l.Pods[0].Addr4.String())
		t.Cleanup(func() { l.onNode("ip route del " + addr) })
		has := func(verb string) { // the context of t has ended in the end
			l.check(l.Pods[0].Command(context.Background(), "ip", "addr", verb, addr+"/32", "dev", "lo").Run())
		}
		has("add")
		t.Cleanup(func() { has("del") })
		l.expect(l.Client, "tcp", addr+":8080", l.Pods[0])
	}
	l.start()
	l.expectSilence(l.Client, "tcp", first+":8080")
	l.expect(l.Client, "tcp", second+":8080", l.Pods[0])
	cidrs := l.admin.NetworkingV1().ServiceCIDRs()
	more := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: l.namespace},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.97.0.0/16"}}}
	_, err := cidrs.Create(l.ctx, more, metav1.CreateOptions{})
	l.check(err)
	t.Cleanup(func() { l.check(cidrs.Delete(l.ctx, more.Name, metav1.DeleteOptions{})) })
	l.expectSilence(l.Client, "tcp", second+":8080")
	l.apply(service("web", "clusterIP: "+first+", ports: [{port: 80}]"), slice("web", 1, 8080, "TCP", l.Pods[0]))
	l.expect(l.Client, "tcp", first+":80", l.Pods[0])
	l.expectRefused(l.Client, "tcp", first+":8080")
	l.stop(syscall.SIGTERM)

	l.start("--service-proxy-name=sluice")
	l.expect(l.Client, "tcp", first+":8080", l.Pods[0])
	l.expect(l.Client, "tcp", second+":8080", l.Pods[0])
}

// TestHeadlessLabel holds that slices labelled as headless are no endpoints.
func TestHeadlessLabel(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods...)
	l.start()
	l.apply(service("web", "ports: [{port: 80}]"), slice("web", 1, 8080, "TCP", l.Pods[0]))
	l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[0])
	headless := "labels: {service.kubernetes.io/headless: '', "
	l.apply(strings.Replace(slice("web", 1, 8080, "TCP", l.Pods[0]), "labels: {", headless, 1))
	l.expectRefused(l.Client, "tcp", l.addr("web", 80))
	l.apply(slice("web", 1, 8080, "TCP", l.Pods[1]))
	l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[1])
}

// TestReadiness covers endpoints that are not ready, that terminate, and all that is
// said of them under each policy.
func TestReadiness(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods...)
	l.serve(8080, l.RemotePods...)
	l.start()
	const unready = ", conditions: {ready: false}"
	const terminating = ", conditions: {ready: false, serving: true, terminating: true}"
	const stopped = ", conditions: {ready: false, serving: false, terminating: true}"
	port := "{port: 8080}"
	l.apply(service("web", "type: NodePort, ports: [{port: 80}]"), sliceOf("web", 1, "IPv4", port, endpoint(l.Pods[0], unready)))
	l.expectRefused(l.Client, "tcp", l.addr("web", 80))
	l.expectRefused(l.Client, "tcp", l.nodePort("web"))
	l.apply(sliceOf("web", 1, "IPv4", port, endpoint(l.Pods[0], "")))
	l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[0])
	l.apply(sliceOf("web", 1, "IPv4", port, endpoint(l.Pods[0], terminating), endpoint(l.Pods[1], "")))
	l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[1])
	l.apply(sliceOf("web", 1, "IPv4", port, endpoint(l.Pods[0], terminating), endpoint(l.Pods[1], stopped)))
	l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[0])
	l.expect(l.Client, "tcp", l.nodePort("web"), l.Pods[0])
	l.apply(sliceOf("web", 1, "IPv4", port, endpoint(l.Pods[1], stopped)))
	l.expectRefused(l.Client, "tcp", l.addr("web", 80))

	// With policy Local the endpoints of this node count, and those that terminate only
	// if there is no other.
	for _, policy := range []string{"internalTrafficPolicy", "externalTrafficPolicy"} {
		name := strings.ToLower(policy[:3])
		l.apply(service(name, "type: NodePort, "+policy+": Local, ports: [{port: 80}]"),
			sliceOf(name, 1, "IPv4", port, endpoint(l.Pods[0], terminating), endpoint(l.RemotePods[0], "")))
		addr, from := l.addr(name, 80), l.Pods[2]
		if name == "ext" {
			addr, from = l.nodePort(name), l.Client
		}
		l.expect(from, "tcp", addr, l.Pods[0])
		l.apply(sliceOf(name, 1, "IPv4", port, endpoint(l.Pods[0], terminating), endpoint(l.Pods[1], ""), endpoint(l.RemotePods[0], "")))
		l.expect(from, "tcp", addr, l.Pods[1])
		l.apply(sliceOf(name, 1, "IPv4", port, endpoint(l.RemotePods[0], "")))
		l.expectSilence(from, "tcp", addr)
	}
}

// TestPolicies covers who gets which endpoints, and that a change of policy is followed.
func TestPolicies(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods...)
	l.serve(8080, l.RemotePods...)
	l.serve(8080, l.Node) // a pod on the host's network
	l.start()
	all := append(l.RemotePods[:2:2], l.Pods[:2]...)
	for _, protocol := range []string{"TCP", "UDP"} {
		network := strings.ToLower(protocol)
		name := "ext-" + network
		ports := "ports: [{port: 80, protocol: " + protocol + "}]"
		lbStatus := "status: {loadBalancer: {ingress: [{ip: 203.0.113.20}]}}\n"
		l.apply(service(name, "type: LoadBalancer, "+ports)+lbStatus, slice(name, 1, 8080, protocol, all...))
		l.expect(l.Client, network, l.nodePort(name), all...)
		l.expect(l.Client, network, "203.0.113.20:80", all...)
		l.apply(service(name, "type: LoadBalancer, externalTrafficPolicy: Local, "+ports) + lbStatus)
		l.expect(l.Client, network, l.nodePort(name), l.Pods[:2]...)
		l.expect(l.Client, network, "203.0.113.20:80", l.Pods[:2]...)
		for _, inside := range []*testbed.Host{l.Pods[2], l.Node} { // which have every endpoint
			l.expect(inside, network, "203.0.113.20:80", all...)
		}
		l.expect(l.Client, network, l.addr(name, 80), all...)
		l.apply(service(name, "type: LoadBalancer, "+ports) + lbStatus)
		l.expect(l.Client, network, l.nodePort(name), all...)
		l.deleteService(name)

		name = "int-" + network
		l.apply(service(name, "internalTrafficPolicy: Local, "+ports), slice(name, 1, 8080, protocol, all...))
		for _, inside := range []*testbed.Host{l.Pods[2], l.Node, l.Pods[0]} {
			l.expect(inside, network, l.addr(name, 80), l.Pods[:2]...)
		}
		l.apply(sliceOf(name, 1, "IPv4", "{port: 8080, protocol: "+protocol+"}", endpoint(l.Node, "")))
		for _, inside := range []*testbed.Host{l.Pods[2], l.Node} { // an endpoint on the host's network
			l.expect(inside, network, l.addr(name, 80), l.Node)
		}
	}
}

// TestHealthCheckNodePort holds what a load balancer learns under policy Local, and
// that the port goes with the policy.
func TestHealthCheckNodePort(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods...)
	l.start()
	local := service("web", "type: LoadBalancer, externalTrafficPolicy: Local, ports: [{port: 80}]")
	l.apply(local, slice("web", 1, 8080, "TCP", l.Pods[0]))
	url := fmt.Sprintf("http://127.0.0.1:%d/healthz", l.service("web").Spec.HealthCheckNodePort)
	expect := func(want int) {
		t.Helper()
		l.eventually(fmt.Sprintf("%s answers %d", url, want), func() bool {
			code, _ := l.Node.Page(url)
			return code == want
		})
	}
	expect(200)
	l.apply(sliceOf("web", 1, "IPv4", "{port: 8080}", endpoint(l.Pods[0], ", conditions: {ready: false, serving: true, terminating: true}")))
	expect(503)
	l.apply(slice("web", 1, 8080, "TCP", l.Pods[1]))
	expect(200)
	l.apply(service("web", "type: LoadBalancer, ports: [{port: 80}]"))
	expect(0)
	l.apply(service("web", fmt.Sprintf("type: LoadBalancer, externalTrafficPolicy: Local, ports: [{port: 80, nodePort: %d}]", l.service("web").Spec.Ports[0].NodePort)))
	url = fmt.Sprintf("http://127.0.0.1:%d/healthz", l.service("web").Spec.HealthCheckNodePort)
	expect(200)
}

// TestDistribution covers topology hints, as trafficDistribution and the annotation
// topology-mode bring them about.
func TestDistribution(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods...)
	l.serve(8080, l.RemotePods...)
	l.start()
	port := "{port: 8080}"
	zone := func(z string) string { return fmt.Sprintf(", hints: {forZones: [{name: %s}]}", z) }
	node := func(z, n string) string {
		return fmt.Sprintf(", hints: {forZones: [{name: %s}], forNodes: [{name: %s}]}", z, n)
	}
	l.apply(service("zone", "trafficDistribution: PreferSameZone, ports: [{port: 80}]"),
		sliceOf("zone", 1, "IPv4", port, endpoint(l.Pods[0], zone("east")), endpoint(l.RemotePods[0], zone("west"))))
	l.expect(l.Client, "tcp", l.addr("zone", 80), l.Pods[0])
	l.apply(sliceOf("zone", 1, "IPv4", port, endpoint(l.RemotePods[0], zone("west")))) // none for us: all
	l.expect(l.Client, "tcp", l.addr("zone", 80), l.RemotePods[0])
	l.apply(service("node", "trafficDistribution: PreferSameNode, ports: [{port: 80}]"),
		sliceOf("node", 1, "IPv4", port, endpoint(l.Pods[0], node("east", "node")), endpoint(l.Pods[1], node("east", "elsewhere")), endpoint(l.RemotePods[0], node("west", "remote-node"))))
	l.expect(l.Client, "tcp", l.addr("node", 80), l.Pods[0])
	l.apply(sliceOf("node", 1, "IPv4", port, endpoint(l.Pods[1], node("east", "elsewhere")), endpoint(l.RemotePods[0], node("west", "remote-node"))))
	l.expect(l.Client, "tcp", l.addr("node", 80), l.Pods[1])
}

// TestAffinity covers affinity at a cluster IP, a node port and a load balancer of
// either policy, its timeout, and switching it.
func TestAffinity(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods...)
	l.start()
	const none = "type: LoadBalancer, ports: [{port: 80}]"
	const sticky = "sessionAffinity: ClientIP, "
	const balancer = "203.0.113.50:80"
	publish := func(spec string) {
		t.Helper()
		l.apply(service("web", spec) + "status: {loadBalancer: {ingress: [{ip: 203.0.113.50}]}}\n")
	}
	publish(sticky + none)
	l.apply(slice("web", 1, 8080, "TCP", l.Pods...))
	for _, at := range []struct{ addr, policy string }{
		{l.addr("web", 80), ""}, {l.nodePort("web"), ""}, {balancer, ""}, {balancer, "externalTrafficPolicy: Local, "},
	} {
		addr, none, sticky := at.addr, at.policy+none, at.policy+sticky+none
		publish(sticky)
		l.expectOne(addr)
		publish(none)
		l.expect(l.Client, "tcp", addr, l.Pods...)
		publish(sticky)
		l.expectOne(addr)
		publish("sessionAffinityConfig: {clientIP: {timeoutSeconds: 1}}, " + sticky)
		l.expectOne(addr)
		first, err := l.Client.TryAsk("tcp", addr, soon)
		l.check(err)
		l.eventually("the client is sent to another pod after a pause", func() bool {
			pause(l.ctx, 1100*time.Millisecond) // longer than the timeout
			name, err := l.Client.TryAsk("tcp", addr, soon)
			return err == nil && name != first
		})
	}
}

// expectOne waits until one pod answers all connections of the client.
func (l *lab) expectOne(addr string) {
	l.t.Helper()
	l.eventually("one pod answers at "+addr, func() bool {
		first, err := l.Client.TryAsk("tcp", addr, soon)
		for i := 0; err == nil && i < 10; i++ {
			var name string
			if name, err = l.Client.TryAsk("tcp", addr, soon); name != first {
				return false
			}
		}
		return err == nil
	})
}

// TestDualStack covers Services of each family, and of both in either order.
func TestDualStack(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods...)
	l.start()
	six := func(service string, n int, protocol string, h *testbed.Host) string {
		return sliceOf(service, n, "IPv6", "{port: 8080, protocol: "+protocol+"}", fmt.Sprintf("{addresses: ['%s'], nodeName: node}", h.Addr6))
	}
	for name, spec := range map[string]string{
		"v4": "ipFamilies: [IPv4]", "v6": "ipFamilies: [IPv6]",
		"v4v6": "ipFamilyPolicy: RequireDualStack, ipFamilies: [IPv4, IPv6]", "v6v4": "ipFamilyPolicy: RequireDualStack, ipFamilies: [IPv6, IPv4]",
	} {
		for _, protocol := range []string{"TCP", "UDP"} {
			network := strings.ToLower(protocol)
			service4 := service(name+"-"+network, fmt.Sprintf("type: NodePort, %s, ports: [{port: 80, protocol: %s}]", spec, protocol))
			l.apply(service4, slice(name+"-"+network, 4, 8080, protocol, l.Pods[0]), six(name+"-"+network, 6, protocol, l.Pods[1]))
			svc := l.service(name + "-" + network)
			for i, family := range svc.Spec.IPFamilies {
				node, want := l.Node.Addr4, l.Pods[0]
				if family == corev1.IPv6Protocol {
					node, want = l.Node.Addr6, l.Pods[1]
				}
				l.expect(l.Client, network, net.JoinHostPort(svc.Spec.ClusterIPs[i], "80"), want)
				l.expect(l.Client, network, net.JoinHostPort(node.String(), strconv.Itoa(int(svc.Spec.Ports[0].NodePort))), want)
			}
			l.deleteService(svc.Name)
		}
	}
}

// TestLoadBalancer covers source ranges, and load balancers without node ports.
func TestLoadBalancer(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods...)
	l.start()
	const status = "status: {loadBalancer: {ingress: [{ip: 203.0.113.30}]}}\n"
	l.apply(service("web", "type: LoadBalancer, allocateLoadBalancerNodePorts: false, ports: [{port: 80}]")+status, slice("web", 1, 8080, "TCP", l.Pods[0]))
	l.expect(l.Client, "tcp", "203.0.113.30:80", l.Pods[0])
	if port := l.service("web").Spec.Ports[0].NodePort; port != 0 {
		t.Errorf("the API server gave it node port %d", port)
	}
	l.apply(service("web", "type: LoadBalancer, allocateLoadBalancerNodePorts: false, loadBalancerSourceRanges: [10.244.0.0/16], ports: [{port: 80}]") + status)
	l.expectSilence(l.Client, "tcp", "203.0.113.30:80")
	l.expect(l.RemotePods[0], "tcp", "203.0.113.30:80", l.Pods[0])
	l.expect(l.Client, "tcp", l.addr("web", 80), l.Pods[0])
	l.apply(service("web", "type: LoadBalancer, allocateLoadBalancerNodePorts: false, ports: [{port: 80}]") + status)
	l.expect(l.Client, "tcp", "203.0.113.30:80", l.Pods[0])
}

// TestURLs covers what tools ask of kube-proxy.
func TestURLs(t *testing.T) {
	l := newLab(t)
	l.start()
	if code, _ := l.Node.Page("http://127.0.0.1:10256/healthz"); code != 200 {
		t.Errorf("/healthz is %d", code)
	}
	if code, body := l.Node.Page("http://127.0.0.1:10249/proxyMode"); code != 200 || body != "userspace" {
		t.Errorf("/proxyMode is %d %q, want userspace", code, body)
	}
}
