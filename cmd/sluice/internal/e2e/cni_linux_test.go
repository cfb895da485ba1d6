package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// besideLab is a Lab whose node and pods are as a CNI makes them, with the CNI's rules in the kernel.
type besideLab struct {
	*lab.Lab
	client, other, strict, server *testbed.Host
	rules                         string // input of iptables-restore
}

const (
	shopIP, openIP, farIP = "10.96.1.1", "10.96.1.2", "10.96.1.3"
	shopNode              = 31001
	openNode              = 31002
)

// newBeside makes such a Lab; testdata has the rules. Every pod answers with its name and whom it sees.
func newBeside(t *testing.T, cni string) *besideLab {
	file, err := os.ReadFile("testdata/" + cni + ".txt")
	testbed.Check(t, err)
	cfg := testbed.Config{Pods: -1, RemotePods: 1}
	if cni == "flannel" {
		cfg.Pods = 4 // cni0 is as Flannel's plugin makes it
	}
	l := &besideLab{Lab: lab.New(t, cfg), rules: string(file)}
	pods := l.Pods
	if cni != "flannel" {
		pods = testbed.NewHostsT(t, "client", "other", "strict", "server")
	}
	l.client, l.other, l.strict, l.server = pods[0], pods[1], pods[2], pods[3]
	switch cni {
	case "calico":
		l.calico()
	case "cilium":
		l.cilium()
	}
	for _, pod := range append([]*testbed.Host{l.RemotePods[0]}, pods...) {
		testbed.Keep(t)(pod.Peer("tcp", ":8080"))
		testbed.Keep(t)(pod.Peer("udp", ":8080"))
	}
	l.publish("shop", shopIP, shopNode, l.server)
	l.publish("open", openIP, openNode, l.other)
	l.publish("far", farIP, 31003, l.RemotePods[0])
	return l
}

// veth joins a pod to the node, whose end has a link-local address only, and routes the pod's addresses there.
func (l *besideLab) veth(pod *testbed.Host, name string, suffix int, gateway string) {
	l.T.Helper()
	pod.Addr4 = netip.MustParseAddr(fmt.Sprintf("10.244.1.%d", suffix))
	pod.Addr6 = netip.MustParseAddr(fmt.Sprintf("2001:db8:244:1::%d", suffix))
	address, address6 := netip.PrefixFrom(pod.Addr4, 32), netip.PrefixFrom(pod.Addr6, 128)
	local := netip.MustParseAddr("fe80::ecee:eeff:feee:eeee") // of Calico's ee:ee:ee:ee:ee:ee
	testbed.Check(l.T, testbed.Cable(
		testbed.End{Host: l.Node, Name: name, Addrs: []netip.Prefix{netip.PrefixFrom(local, 64)}},
		testbed.End{Host: pod, Name: "eth0", Addrs: []netip.Prefix{address, address6}}))
	testbed.Check(l.T, l.Node.Route(name, address6, netip.Addr{}))
	testbed.Check(l.T, pod.Route("eth0", netip.MustParsePrefix("::/0"), local))
	testbed.Check(l.T, l.Node.Sysctl("net.ipv4.conf."+name+".proxy_arp", "1")) // Cilium's eBPF answers in its place
	testbed.Check(l.T, l.Node.Sysctl("net.ipv4.neigh."+name+".proxy_delay", "0"))
	testbed.Check(l.T, l.Node.Route(name, address, netip.Addr{}))
	at := netip.MustParseAddr(gateway)
	testbed.Check(l.T, pod.Route("eth0", netip.PrefixFrom(at, 32), netip.Addr{}))
	testbed.Check(l.T, pod.Route("eth0", netip.MustParsePrefix("0.0.0.0/0"), at))
}

// calico makes interfaces, routes, settings and sets as Calico's plugin and Felix do.
func (l *besideLab) calico() {
	for i, pod := range []*testbed.Host{l.client, l.other, l.strict, l.server} {
		name := []string{"cali0a000000001", "cali0a000000002", "cali0a000000003", "cali0b000000001"}[i]
		l.veth(pod, name, 10+i, "169.254.1.1")
		testbed.Check(l.T, l.Node.Sysctl("net.ipv4.conf."+name+".route_localnet", "1"))
		testbed.Check(l.T, l.Node.Sysctl("net.ipv4.conf."+name+".rp_filter", "1"))
	}
	for _, set := range []string{"create cali40masq-ipam-pools hash:net", "add cali40masq-ipam-pools 10.244.0.0/16",
		"create cali40network-ip-pools hash:net", "add cali40network-ip-pools 10.244.0.0/16",
		"create cali40s:clients hash:net", "create cali40s:servers hash:net",
		"add cali40s:clients " + l.client.Addr4.String(), "add cali40s:clients " + l.strict.Addr4.String(),
		"add cali40s:servers " + l.server.Addr4.String()} {
		l.Node.Run(l.T, "ipset", strings.Fields(set)...)
	}
}

// cilium makes interfaces, routes and rules as Cilium's agent does.
func (l *besideLab) cilium() {
	testbed.Check(l.T, testbed.Cable(
		testbed.End{Host: l.Node, Name: "cilium_host", Addrs: []netip.Prefix{netip.MustParsePrefix("10.244.1.1/32")}},
		testbed.End{Host: l.Node, Name: "cilium_net"}))
	for i, pod := range []*testbed.Host{l.client, l.other, l.strict, l.server} {
		l.veth(pod, fmt.Sprintf("lxc00000000000%d", i), 10+i, "10.244.1.1")
	}
	for _, line := range []string{"rule add fwmark 0x200/0xf00 priority 9 lookup 2004",
		"rule add fwmark 0xa00/0xf00 priority 10 lookup 2005", "route add local default dev lo table 2004",
		"route add 10.244.1.1 dev cilium_host table 2005", "route add default via 10.244.1.1 table 2005"} {
		l.Node.Run(l.T, "ip", strings.Fields(line)...)
	}
}

// publish writes a Service with port 80 of TCP and of UDP, and its endpoint.
func (l *besideLab) publish(name, ip string, nodePort int, pod *testbed.Host) {
	l.Write(name+".yaml", fmt.Sprintf(`apiVersion: v1
kind: Service
metadata:
  name: %s
spec:
  type: NodePort
  clusterIP: %s
  ports:
  - {name: tcp, port: 80, protocol: TCP, nodePort: %d}
  - {name: udp, port: 80, protocol: UDP, nodePort: %[3]d}
`, name, ip, nodePort), fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: %s-1
  labels: {kubernetes.io/service-name: %[1]s}
addressType: IPv4
ports:
- {name: tcp, port: 8080, protocol: TCP}
- {name: udp, port: 8080, protocol: UDP}
endpoints:
- addresses: [%s]
`, name, pod.Addr4))
}

// restore writes the CNI's rules, as it does at a start.
func (l *besideLab) restore() {
	l.T.Helper()
	l.feed(l.rules)
}

func (l *besideLab) feed(rules string) {
	l.T.Helper()
	l.Node.DoT(l.T, func() error {
		testbed.Feed(l.T, rules, "iptables-restore", "--noflush")
		return nil
	})
}

var intoKernels = regexp.MustCompile(`(?m)^-[AI] ([A-Z]+ .*)$`)

// again writes them anew: its chains are flushed and filled, and the rules that lead there deleted and written.
func (l *besideLab) again() {
	l.T.Helper()
	l.feed(intoKernels.ReplaceAllString(l.rules, "-D $1\n$0"))
}

// others are the rules of iptables but Sluice's, by their tables, of which iptables-nft leaves empty ones, and routing.
func (l *besideLab) others() string {
	save := lab.Counters.ReplaceAllString(l.Output("iptables-save"), "")
	tables := slices.DeleteFunc(strings.SplitAfter(sluices.ReplaceAllString(save, ""), "COMMIT\n"),
		func(table string) bool { return !strings.Contains(table, "\n-A ") })
	slices.Sort(tables)
	return strings.Join(tables, "") + l.Output("ip", "rule") + l.Output("ip", "-4", "route", "show", "table", "all")
}

var sluices = regexp.MustCompile(`(?m)^.*SLUICE-.*\n`)

// question is one request by each protocol, with what its answer is: the pod and whom it sees, or none.
type question struct {
	from *testbed.Host
	to   string
	want string
}

// ask asks all questions at once. A pod that sees an address of the node says "the node" here.
func (l *besideLab) ask(questions ...question) {
	l.T.Helper()
	var all sync.WaitGroup
	for _, q := range questions {
		for _, protocol := range []string{"tcp", "udp"} {
			all.Go(func() {
				got := q.from.Ask(protocol, q.to, dropSilence)
				name, sees, _ := strings.Cut(got, " ")
				if sees == l.Node.Addr4.String() || sees == "10.244.1.1" {
					got = name + " the node"
				}
				if got != q.want {
					l.T.Errorf("%s from %s to %s: got %q, want %q", protocol, q.from, q.to, got, q.want)
				}
			})
		}
	}
	all.Wait()
}

// sees is the answer of a pod that sees another.
func sees(pod, whom *testbed.Host) string { return pod.Name + " " + whom.Addr4.String() }

// seesNode is that of a pod that sees the node.
func seesNode(pod *testbed.Host) string { return pod.Name + " the node" }

func (l *besideLab) nodePort(port int) string { return fmt.Sprintf("%s:%d", l.Node.Addr4, port) }

// common are the questions whose answers a policy does not change; kernel: they are answered by a path in the kernel.
func (l *besideLab) common(kernel bool) []question {
	pod, remote := l.client, l.RemotePods[0]
	at := func(h, from *testbed.Host) string {
		if kernel {
			return sees(h, from)
		}
		return seesNode(h)
	}
	return []question{
		{pod, openIP + ":80", at(l.other, pod)},
		{pod, shopIP + ":80", at(l.server, pod)},
		{pod, farIP + ":80", at(remote, pod)},
		{remote, openIP + ":80", at(l.other, remote)},
		{l.Node, openIP + ":80", seesNode(l.other)},
		{l.other, openIP + ":80", seesNode(l.other)},
		{pod, l.nodePort(openNode), seesNode(l.other)},
		{l.other, l.nodePort(openNode), seesNode(l.other)},
		{l.Client, openIP + ":80", seesNode(l.other)},
		{l.Client, l.nodePort(openNode), seesNode(l.other)},
		{l.Client, l.nodePort(31003), seesNode(remote)},
	}
}

// policed are the questions to and from pods with a NetworkPolicy of Calico, which polices what a pod sends, and what
// is forwarded to a pod, but nothing that the node itself sends to its pods.
func (l *besideLab) policed(kernel bool) []question {
	if kernel {
		return []question{
			{l.strict, shopIP + ":80", sees(l.server, l.strict)},
			{l.strict, openIP + ":80", testbed.Dropped},
			{l.other, shopIP + ":80", testbed.Dropped},
			{l.Client, l.nodePort(shopNode), testbed.Dropped}, // masqueraded after the policy
		}
	}
	return []question{
		{l.strict, shopIP + ":80", testbed.Dropped}, // it asks the node, as its policy sees it
		{l.strict, openIP + ":80", testbed.Dropped},
		{l.other, shopIP + ":80", seesNode(l.server)},
		{l.Client, l.nodePort(shopNode), seesNode(l.server)},
	}
}

// beside starts Sluice, asks, has the CNI write its rules anew, asks again, and cleans up. Policies of a CNI are in
// force at the latest when it has written its rules after Sluice.
func (l *besideLab) beside(questions, policed []question, args ...string) {
	l.T.Helper()
	l.restore()
	before := l.others()
	l.Start(append([]string{"--hostname-override", "node"}, args...)...)
	l.ask(questions...)
	l.again()
	l.ask(append(policed, questions...)...)
	if got := l.others(); got != before {
		l.T.Errorf("with Sluice, rules of others are\n%s\nbefore:\n%s", got, before)
	}
	if strings.Contains(l.Log.String(), "another program has changed rules") {
		l.T.Error("Sluice writes its rules anew because the CNI does")
	}
	l.Signal(syscall.SIGTERM)
	l.Wait()
	if out, err := l.Command("--cleanup").CombinedOutput(); err != nil {
		l.T.Errorf("--cleanup: %v, %s", err, out)
	}
	if after := l.others(); after != before || strings.Contains(l.Output("iptables-save"), "SLUICE-") {
		l.T.Errorf("after --cleanup:\n%s\nbefore:\n%s", l.Output("iptables-save"), before)
	}
}

const poolOfPods = "10.244.0.0/16"

// TestBesideCNI: each path serves beside the rules of a CNI, both survive that the other writes its rules, and the
// endpoint sees the client as docs/client-address.md says.
func TestBesideCNI(t *testing.T) {
	t.Parallel()
	for _, cni := range []string{"calico", "cilium", "flannel"} {
		for _, mode := range []string{"userspace", "userspace by iptables", "nftables", "iptables", "queue", "auto"} {
			t.Run(cni+", "+mode, func(t *testing.T) {
				t.Parallel()
				l := newBeside(t, cni)
				mode, filter, _ := strings.Cut(mode, " by ")
				l.Mode, l.By = mode, filter
				var policed []question
				if cni == "calico" {
					policed = l.policed(mode != "userspace")
				}
				l.beside(l.common(mode != "userspace"), policed, "--bind-address", l.Node.Addr4.String(),
					"--cluster-cidr", poolOfPods)
			})
		}
	}
}

// TestInterfacesWithoutAddress: in user space, pods behind such interfaces need --bind-address to reach cluster IPs.
// They reach node ports without it. IPv6 does not need it: each interface has a link-local address.
func TestInterfacesWithoutAddress(t *testing.T) {
	t.Parallel()
	for _, filter := range []string{"nftables", "iptables"} {
		t.Run(filter, func(t *testing.T) {
			t.Parallel()
			l := newBeside(t, "calico")
			l.By = filter
			l.restore()
			l.Start()
			l.ask(question{l.Client, openIP + ":80", seesNode(l.other)}, question{l.Node, openIP + ":80", seesNode(l.other)},
				question{l.client, openIP + ":80", testbed.Dropped},
				question{l.client, l.nodePort(openNode), seesNode(l.other)}) // the proxy listens there
			const six = "[2001:db8:96::2]:80"
			l.Apply(func() {
				l.Write("six.yaml", testbed.ServiceManifest("six", six, "TCP", ""),
					testbed.SliceManifest("six", 1, 8080, "TCP", l.other.Addr6.String()))
			})
			if got, err := l.client.Who(six); !strings.HasPrefix(got, l.other.Name+" ") {
				t.Errorf("by IPv6 the answer is %q, %v", got, err)
			}
		})
	}
}

// TestPodsToTheNode: in user space Calico must let pods ask the node.
func TestPodsToTheNode(t *testing.T) {
	t.Parallel()
	l := newBeside(t, "calico")
	l.rules = strings.Replace(l.rules, `DefaultEndpointToHostAction" -j ACCEPT`, `DefaultEndpointToHostAction" -j DROP`, 1)
	l.restore()
	l.Start("--bind-address", l.Node.Addr4.String())
	l.ask(question{l.client, openIP + ":80", testbed.Dropped}, question{l.Client, openIP + ":80", seesNode(l.other)})
}

// marksMoved are the flags beside a Calico whose mask is 0xff000000.
var marksMoved = []string{"--mark-mask", "0x00ffff00", "--iptables-masquerade-bit", "0"}

// moveMarks gives Calico that mask.
func (l *besideLab) moveMarks() {
	l.rules = regexp.MustCompile(`\b(0x[0-9a-f]+)0000\b`).ReplaceAllString(l.rules, "${1}000000")
}

// TestMarksOfCalico: Sluice and Calico work side by side. A start warns if both use the same bits of marks. It does not
// if Calico has the mask of docs/data-paths.md.
func TestMarksOfCalico(t *testing.T) {
	t.Parallel()
	lab.EachMode(t, []string{"nftables", "iptables", "queue"}, func(t *testing.T, mode string) {
		const warning = "another program uses the same mark bits"
		l := newBeside(t, "calico")
		l.Mode = mode
		l.moveMarks()
		l.beside(l.common(true), l.policed(true), append([]string{"--cluster-cidr", poolOfPods}, marksMoved...)...)
		if strings.Contains(l.Log.String(), warning) {
			t.Errorf("with marks moved it says %q", warning)
		}
		l.Start()
		l.Eventually("the masks meet", func() bool { return strings.Contains(l.Log.String(), warning) })
	})
}

// TestTransparentBesideCalico: an endpoint on the client's node sees the client, with Calico's marks and reverse path
// filter, and with Sluice's moved.
func TestTransparentBesideCalico(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, marksMoved} {
		l := newBeside(t, "calico")
		l.Write("open.yaml", transparentService(true, "open", openIP+":80", "node", l.other.Addr4.String())...)
		if args != nil {
			l.moveMarks()
		}
		l.restore()
		l.Start(append([]string{"--hostname-override", "node"}, args...)...)
		for range 2 {
			want := sees(l.other, l.Client)
			if got, err := l.Client.Who(openIP + ":80"); got != want {
				t.Errorf("with %q the endpoint answers %q, %v, want %q", args, got, err, want)
			}
			l.again()
		}
	}
}

// TestPolicyAcrossNodes: a policy at another node sees the client through a path in the kernel, and the client's node
// through user space.
func TestPolicyAcrossNodes(t *testing.T) {
	t.Parallel()
	lab.EachMode(t, []string{"userspace", "nftables"}, func(t *testing.T, mode string) {
		l := newBeside(t, "calico")
		remote := l.RemotePods[0]
		l.Node.Run(t, "ipset", "add", "cali40s:clients", remote.Addr4.String())
		l.restore()
		far := l.Remote()
		far.Dir = l.Dir
		far.Mode = mode
		far.Start("--cluster-cidr", poolOfPods)
		want := sees(l.server, remote)
		if mode == "userspace" {
			want = testbed.Dropped
		}
		l.ask(question{remote, shopIP + ":80", want})
	})
}

// TestPodRanges: where Calico has other ranges than the Node object, pods are known by their interfaces, or by
// --cluster-cidr. Otherwise their requests are masqueraded: an endpoint sees the node, and so does a policy at another
// node.
func TestPodRanges(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"nftables", "iptables"} {
		for known, args := range map[string][]string{"no": nil, "interfaces": {"--detect-local-mode", "InterfaceNamePrefix",
			"--pod-interface-name-prefix", "cali"}, "ranges": {"--cluster-cidr", poolOfPods}} {
			t.Run(mode+", "+known, func(t *testing.T) {
				t.Parallel()
				l := newBeside(t, "calico")
				l.Mode = mode
				l.Write("node.yaml", strings.Replace(nodeManifest, "10.244.1.0/24", "10.245.1.0/24", 1))
				l.restore()
				l.Start(append([]string{"--hostname-override", "node"}, args...)...)
				want, remote := sees(l.server, l.client), l.RemotePods[0]
				wantRemote := seesNode(l.other)
				switch known {
				case "no":
					want = seesNode(l.server)
				case "ranges":
					wantRemote = sees(l.other, remote)
				}
				l.ask(question{l.client, shopIP + ":80", want}, question{remote, openIP + ":80", wantRemote})
			})
		}
	}
}
