package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
	kernel "github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// TestKubeProxyCases: what becomes of packets in user space, steered by either packet filter, is what the tests of
// kube-proxy's mode nftables want. Endpoints see an address of the node, always.
func TestKubeProxyCases(t *testing.T) {
	t.Parallel()
	for _, filter := range []string{"nftables", "iptables"} {
		t.Run(filter, func(t *testing.T) {
			t.Parallel()
			var p *caseProgram
			kernel.KubeProxyCases(t, false, func(s kernel.Setup) kernel.Engine {
				if p == nil {
					p = &caseProgram{Lab: lab.On(t, &testbed.Testbed{Node: s.Node})}
					p.By = filter
				}
				if s.IPv6 { // the program has both families
					return &caseFamily{p}
				}
				return p
			})
		})
	}
}

// caseProgram forwards by the program, which reads manifests.
type caseProgram struct {
	*lab.Lab
	flags []string // that it was started with
}

// caseFamily stands for the family that has been forwarded already.
type caseFamily struct{ *caseProgram }

func (*caseFamily) Sync(context.Context, lb.Delta, lb.Node) error { return nil }

func (p *caseProgram) Verify(context.Context) (bool, error) { return true, nil }

// Sync writes the Services as manifests and waits until they are applied.
func (p *caseProgram) Sync(_ context.Context, d lb.Delta, about lb.Node) error {
	flags := []string{"--hostname-override=node"}
	documents := []string{caseNode(about.PodCIDRs)}
	var nodePorts []string
	for _, s := range d.Added {
		name := s.Name
		if s.IPv6 {
			name += "-ipv6"
		}
		documents = append(documents, caseService(name, s), caseSlice(name, s))
		for _, a := range s.Addresses {
			if a.Kind == lb.NodePort {
				nodePorts = append(nodePorts, netip.PrefixFrom(a.Addr.Addr(), a.Addr.Addr().BitLen()).String())
			}
		}
	}
	if slices.Sort(nodePorts); len(nodePorts) > 0 {
		flags = append(flags, "--nodeport-addresses="+strings.Join(slices.Compact(nodePorts), ","))
	}
	const queued, applied = `kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"}`,
		`kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"}`
	if p.Process != nil && slices.Equal(flags, p.flags) {
		before := p.Metric(queued)
		p.Write("cases.yaml", documents...)
		p.Eventually("the Services are applied", func() bool {
			last := p.Metric(queued)
			return last > before && p.Metric(applied) >= last
		})
		return nil
	}
	if p.Process != nil {
		p.Signal(syscall.SIGKILL)
		p.Wait()
	}
	p.flags = flags
	p.Write("cases.yaml", documents...)
	p.Start(flags...)
	return nil
}

func caseNode(pods []netip.Prefix) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: node}\nspec: {podCIDRs: %s}\n", list(pods))
}

// list writes prefixes as YAML.
func list(prefixes []netip.Prefix) string {
	texts := make([]string, len(prefixes))
	for i, p := range prefixes {
		texts[i] = fmt.Sprintf("%q", p)
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// caseService is the manifest of a Service of a case.
func caseService(name string, s *lb.Service) string {
	kind, port, policy := "ClusterIP", "", ""
	var external, ingress []string
	var sources []netip.Prefix
	for _, a := range s.Addresses {
		switch a.Kind {
		case lb.ClusterIP:
			if a.Local {
				policy += "  internalTrafficPolicy: Local\n"
			}
			continue
		case lb.NodePort:
			kind, port = "NodePort", fmt.Sprintf("    nodePort: %d\n", a.Addr.Port())
		case lb.ExternalIP:
			external = append(external, fmt.Sprintf("%q", a.Addr.Addr()))
		case lb.LoadBalancerIP:
			ingress, sources = append(ingress, fmt.Sprintf("{ip: %q}", a.Addr.Addr())), a.Sources
		}
		if a.Local && !strings.Contains(policy, "external") {
			policy += "  externalTrafficPolicy: Local\n"
		}
	}
	if len(ingress) > 0 {
		kind = "LoadBalancer"
	}
	if s.AffinityTimeout > 0 {
		policy += "  sessionAffinity: ClientIP\n"
	}
	if s.IPv6 {
		policy += "  ipFamilies: [IPv6]\n"
	}
	return testbed.ServiceManifest(name, s.Addresses[0].Addr.String(), s.Protocol.String(), port+policy+
		fmt.Sprintf("  type: %s\n  externalIPs: [%s]\n  loadBalancerSourceRanges: %s\nstatus: {loadBalancer: {ingress: [%s]}}\n",
			kind, strings.Join(external, ", "), list(sources), strings.Join(ingress, ", ")))
}

// caseSlice is the manifest of the endpoints, one slice for each port that they have.
func caseSlice(name string, s *lb.Service) string {
	family := "IPv4"
	if s.IPv6 {
		family = "IPv6"
	}
	var documents []string
	for i, b := range s.Backends {
		node := "another"
		if b.Local {
			node = "node"
		}
		documents = append(documents, fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"+
			"metadata: {name: %s-%d, labels: {kubernetes.io/service-name: %s}}\naddressType: %s\n"+
			"ports: [{port: %d, protocol: %s}]\nendpoints: [{addresses: [%q], nodeName: %s, "+
			"conditions: {ready: %v, serving: %v, terminating: %v}}]\n",
			name, i, name, family, b.Addr.Port(), s.Protocol, b.Addr.Addr(), node, b.Ready, b.Serving, b.Terminating))
	}
	return strings.Join(documents, "---\n")
}
