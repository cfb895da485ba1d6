package kube

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// reference says which steps of the scripts stand for what kube-proxy 1.36 promises of
// the Service API: what it watches, skips and identifies, each field of a Service and each
// rule for EndpointSlices. A step is named by its script and a part of its title.
// What a Service port then does with its endpoints (policies, hints, those that terminate,
// affinity) is lb's: see TestSets and the scripts policy and eligible there.
var reference = []struct {
	behaviour string
	steps     []string
}{
	// What is watched.
	{"a Service with the label service-proxy-name is left to the proxy of that name", []string{
		"api-objects watched: Service with the label service-proxy-name", "api-objects watched: a named proxy has those",
		"api-objects watched: a Service that loses the label"}},
	{"that label is read of Services only", []string{"api-objects watched: the label service-proxy-name of an EndpointSlice"}},
	{"endpoints with the label headless are not seen; of a Service it says nothing", []string{
		"api-objects watched: EndpointSlice and Endpoints with the label headless", "api-objects watched: the label headless taken off",
		"api-objects watched: the label headless of a Service"}},
	{"Endpoints serve where there are no EndpointSlices, as in the old userspace mode", []string{
		"api-objects watched: Endpoints speak for a Service", "api-objects watched: Endpoints do not speak"}},
	{"one Node counts, the one of our name: its zone, pod CIDRs and addresses", []string{
		"api-objects watched: Node by its own name only", "node NodeFacts: name, zone", "node TestNewNodeManager", "node TestNodeManagerOnNodeChange", "node TestNodeManagerOnNodeDelete"}},

	// What is skipped, and what identifies a service port.
	{"no rules without a cluster IP, nor for ExternalName; they go when a Service becomes such", []string{
		"api-objects skipped: no cluster IP, None, ExternalName", "api-objects skipped: it becomes headless", "api-objects skipped: it becomes an ExternalName",
		"api-objects skipped: it loses its cluster IP", "api-objects skipped: it returns",
		"kubeproxy-services TestShouldSkipService", "kubeproxy-services TestUpdateServiceTypeExternalName", "kubeproxy-services TestServiceMapUpdateHeadless"}},
	{"a service port is namespace, name, port name and protocol", []string{"api-objects identity: namespace, name", "api-objects identity: one ID once"}},

	// Fields of a Service.
	{"clusterIPs: one service port set for each family, the first of a family; clusterIP if there are none", []string{
		"api-service spec.clusterIPs and ipFamilies", "api-service spec.clusterIPs: absent", "api-service spec.clusterIPs: of several", "kubeproxy-services TestGetClusterIPByFamily"}},
	{"ports: three protocols, TCP if none is said; slice ports match by name, their numbers may differ", []string{
		"api-service spec.ports: TCP is the default", "api-service spec.ports: named target ports"}},
	{"sessionAffinity: 1 s to a day, three hours if nothing is said", []string{"api-service spec.sessionAffinity"}},
	{"type: a NodePort has a cluster IP too, a LoadBalancer both, unless it allocates no node ports", []string{
		"api-service spec.type: NodePort", "api-service spec.type: LoadBalancer", "api-service spec.type: ClusterIP"}},
	{"externalIPs: by family, with externalTrafficPolicy", []string{
		"api-service spec.externalIPs: by family", "api-service spec.externalIPs: of a family without", "api-service spec.externalIPs: an IP that is also",
		"api-service spec.externalTrafficPolicy: Local for the external IPs", "kubeproxy-services TestMapIPsByIPFamily"}},
	{"load-balancer IPs: captured unless ipMode is Proxy; host names are not", []string{
		"api-service status.loadBalancer.ingress", "kubeproxy-services TestLoadBalancerIngressRouteTypeProxy"}},
	{"loadBalancerSourceRanges: for load-balancer IPs, trimmed, by family, length 0 is no limit; no annotation", []string{
		"api-service spec.loadBalancerSourceRanges: load-balancer IPs only", "api-service spec.loadBalancerSourceRanges: length 0",
		"api-service spec.loadBalancerSourceRanges: the annotation", "kubeproxy-services TestLoadBalancer two", "kubeproxy-services TestMapCIDRsByIPFamily", "kubeproxy-services TestIsZeroCIDR"}},
	{"externalTrafficPolicy concerns all addresses but the cluster IP", []string{"api-service spec.externalTrafficPolicy: Local concerns", "api-service spec.externalTrafficPolicy: Cluster"}},
	{"internalTrafficPolicy concerns the cluster IP alone", []string{"api-service spec.internalTrafficPolicy: Local concerns", "api-service spec.internalTrafficPolicy: Cluster"}},
	{"healthCheckNodePort: for LoadBalancer with policy Local; counts local IPs that are ready, once each", []string{
		"api-service spec.healthCheckNodePort: only type", "api-service spec.healthCheckNodePort: counts",
		"kubeproxy-services TestHealthCheckNodePort", "kubeproxy-services TestHealthCheckNodePortWhenTerminating", "kubeproxy-endpoints TestGetLocalEndpointIPs"}},
	{"publishNotReadyAddresses needs nothing", []string{"api-service spec.publishNotReadyAddresses"}},
	{"trafficDistribution and topology-mode: the hints of EndpointSlices say it", []string{
		"api-service spec.trafficDistribution: is read", "api-service spec.trafficDistribution: hints count whatever", "api-service spec.trafficDistribution: no zone label"}},
	{"appProtocol says nothing to a proxy of this layer", []string{"api-service spec.ports[].appProtocol"}},
	{"--nodeport-addresses is not part of the conversion", []string{"api-service --nodeport-addresses"}},

	// EndpointSlices.
	{"the label service-name says whose a slice is; all slices of a Service are one", []string{"api-slices slices: the label service-name", "kubeproxy-slices TestEndpointsMapFromESC two slices, the same port"}},
	{"addressType is the family; FQDN is ignored", []string{"api-slices slices: addressType"}},
	{"ports without name or number are ignored, TCP if no protocol is said, the first address counts", []string{"api-slices slices: ports without name"}},
	{"conditions that are absent: ready, serving, not terminating", []string{"api-slices slices: conditions"}},
	{"local is what has the node's name", []string{"api-slices slices: local is", "api-slices slices: nothing is local"}},
	{"what is in two slices is there once, as the one that does not terminate", []string{
		"api-slices slices: an address that appears twice", "api-slices slices: of two alike", "kubeproxy-slices TestEndpointInfoByServicePort of one IP three times"}},
	{"last-change-trigger-time is for a metric (see TestChanges)", []string{"api-slices slices: the annotation"}},
	{"addresses with leading zeros are made good, others dropped", []string{"api-slices slices: bad addresses", "kubeproxy-services TestBadIPs"}},

	// Trackers: what they made of a series of changes.
	{"Services", []string{
		"kubeproxy-services TestServiceToServiceMap", "kubeproxy-services TestBuildServiceMapAddRemove", "kubeproxy-services TestBuildServiceMapServiceUpdate",
		"kubeproxy-services TestServiceCacheLeaks", "kubeproxy-services TestOnServiceAddChangeMap"}},
	{"endpoints", []string{"kubeproxy-endpoints TestUpdateEndpointsMap", "kubeproxy-slices TestEndpointSliceUpdate", "kubeproxy-slices TestCheckoutChanges"}},
	{"slices", []string{
		"kubeproxy-slices TestEndpointsMapFromESC one slice", "kubeproxy-slices TestEsDataChanged", "kubeproxy-slices TestEndpointSliceCacheClearedCorrectly",
		"kubeproxy-slices TestSameServiceEndpointSliceCacheClearedCorrectly"}},

	// The old userspace mode.
	{"Services and ports that come, change, go and come back", []string{
		"kubeproxy-userspace TestNoopEndpointSlice", "kubeproxy-userspace TestMultiPortOnServiceAdd", "kubeproxy-userspace TestMultiPortProxy",
		"kubeproxy-userspace TestTCPProxyUpdateDelete,", "kubeproxy-userspace TestTCPProxyUpdateDeleteUpdate", "kubeproxy-userspace TestUDPProxyUpdatePort",
		"kubeproxy-services TestTCPProxyUpdatePort", "kubeproxy-services TestProxyUpdatePublicIPs", "kubeproxy-services TestProxyUpdatePortal"}},
	{"endpoints without address or port are left out", []string{"kubeproxy-slices TestValidateWorks, TestFilterWorks"}},
}

// TestReference holds that there is a step for each.
func TestReference(t *testing.T) {
	titles := make(map[string][]string) // of each script
	for _, r := range reference {
		if len(r.steps) == 0 {
			t.Errorf("%s: nothing stands for it", r.behaviour)
		}
		for _, step := range r.steps {
			script, title, _ := strings.Cut(step, " ")
			if titles[script] == nil {
				titles[script] = titlesOf(t, "testdata/"+script+".txt")
			}
			if !slices.ContainsFunc(titles[script], func(s string) bool { return strings.Contains(s, title) }) {
				t.Errorf("%s: the script %s has no step %q", r.behaviour, script, title)
			}
		}
	}
}

// titlesOf returns the names of a script's steps.
func titlesOf(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		command, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if command == "case" || command == "then" {
			out = append(out, name)
		}
	}
	return out
}
