package daemon

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/upgrade"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

// The default is one number, so that a change that fails is a change that broke
// something; new ground is covered with 0.
var (
	modelSeed  = flag.Uint64("model.seed", 1795256396371260414, "begin TestModel's random changes with this `number`; 0: the time")
	modelSteps = flag.Int("model.steps", 600, "`number` of TestModel's random changes; a fifth of it in each variant")
)

// TestModel changes manifests at random and compares, after each change, what the
// kernel, the sockets, the table and the endpoints that answer say with a model that
// knows nothing of how they came to it. Everything but the network is real: the
// program runs in the test's process. Each variant has a process of its own, in a network
// namespace of its own, and they run at the same time.
func TestModel(t *testing.T) {
	variant, alone := os.LookupEnv(modelVar)
	if alone {
		furnishNode(t)
	} else {
		t.Parallel()
	}
	steps := *modelSteps
	if testing.Short() {
		steps = 60 // what goroutines share is the same after few
	}
	seed := *modelSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	for i, v := range []struct {
		name   string
		steps  int
		noSets bool
		flags  []string
		listed []netip.Prefix // where node ports are served; nil: everywhere
	}{
		{name: "everywhere", steps: steps},
		{name: "some node port addresses", steps: steps / 5, flags: []string{"--nodeport-addresses", "192.0.2.0/24,2001:db8:1::/64"},
			listed: nets("192.0.2.0/24 2001:db8:1::/64")},
		{name: "without sets", steps: steps / 5, noSets: true},
	} {
		if alone && v.name != variant {
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			if !alone {
				t.Parallel()
				runModel(t, v.name, seed)
				return
			}
			t.Logf("to repeat: -run 'TestModel/%s' -model.seed %d -model.steps %d", v.name, seed, *modelSteps)
			// Every step writes rules: that they are not written often is for TestMinSyncPeriod.
			r := newModelRun(t, seed, uint64(i), append(v.flags, "--iptables-min-sync-period=0s", "--manifests", t.TempDir()))
			r.noSets, r.listed = v.noSets, v.listed
			r.start()
			defer r.end()
			for r.step = 1; r.step <= v.steps && !t.Failed(); r.step++ {
				r.change()
				r.apply()
				r.compare()
			}
		})
	}
}

const (
	refused = "refused" // what becomes of a packet that is rejected
	dropped = "dropped"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// modelVar names the variant of TestModel that a process is for.
const modelVar = "SLUICE_TEST_MODEL"

// runModel runs a variant in a process of its own, which ends with this one.
func runModel(t *testing.T, name string, seed uint64) {
	args := []string{"-test.run=^TestModel$", "-test.v", "-test.timeout=0", fmt.Sprint("-test.short=", testing.Short()),
		fmt.Sprint("-model.seed=", seed), fmt.Sprint("-model.steps=", *modelSteps)}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), modelVar+"="+name, "GOGC=400") // a tenth of the time was collecting garbage
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // with whose end the other process would end
	defer runtime.UnlockOSThread()
	cmd.Stderr = os.Stderr // reports of data races are known by how their lines begin
	out, err := cmd.Output()
	if errors.Is(err, os.ErrPermission) {
		testbed.Missing(t, err.Error())
	}
	t.Logf("%s", out)
	if passed := "--- PASS: TestModel/" + strings.ReplaceAll(name, " ", "_"); err != nil || !strings.Contains(string(out), passed) {
		t.Errorf("the process of this variant ended with %v; it has to say %q", err, passed)
	}
}

// The node's own addresses. nodeOwn come and go, and are external IPs as well.
var (
	nodeMain = [2]netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8:1::10")}
	nodeOwn  = [2]netip.Addr{netip.MustParseAddr("192.0.2.11"), netip.MustParseAddr("2001:db8:1::11")}
)

// furnishNode gives this namespace the addresses of a node, a way out, and
// endpoints that answer with their address.
func furnishNode(t *testing.T) {
	if links, err := net.Interfaces(); err != nil || len(links) != 1 {
		testbed.Missing(t, fmt.Sprintf("this is no network namespace of the tests' own: it has %d interfaces, %v", len(links), err))
	}
	lo, err := netlink.LinkByName("lo")
	check(t, err)
	check(t, netlink.LinkSetUp(lo))
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "model0"}, PeerName: "model1"}
	check(t, netlink.LinkAdd(link))
	t.Cleanup(func() {
		check(t, redirect.Cleanup(context.Background()))
		check(t, netlink.LinkDel(link))
	})
	peer, err := netlink.LinkByName("model1")
	check(t, err)
	check(t, errors.Join(netlink.LinkSetUp(link), netlink.LinkSetUp(peer)))
	for i, main := range nodeMain {
		setAddress(t, main, true)
		for _, ip := range endpointPool[i] {
			setAddress(t, ip, true)
			serveEndpoint(t, ip)
		}
		everywhere := netip.PrefixFrom(unspecified(i == 1), 0)
		check(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index,
			Dst: &net.IPNet{IP: everywhere.Addr().AsSlice(), Mask: net.CIDRMask(0, everywhere.Addr().BitLen())}}))
	}
}

// setAddress gives the node an address, or takes it away. An IPv6 address works only
// when a thread of the kernel has got round to its route (addrconf_dad_work in
// net/ipv6/addrconf.c, 6.18), and what is sent there sooner is lost.
func setAddress(t *testing.T, ip netip.Addr, add bool) {
	t.Helper()
	link, err := netlink.LinkByName("model0")
	check(t, err)
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}, Flags: syscall.IFA_F_NODAD}
	if !add {
		check(t, netlink.AddrDel(link, addr))
		return
	}
	check(t, netlink.AddrAdd(link, addr))
	testbed.Eventually(t, ip.String()+" is the node's own", func() bool {
		routes, err := netlink.RouteGet(addr.IP)
		return err == nil && len(routes) == 1 && routes[0].Type == syscall.RTN_LOCAL
	})
}

// serveEndpoint answers on both target ports of an endpoint with what was asked.
func serveEndpoint(t *testing.T, ip netip.Addr) {
	for _, port := range targetPool {
		host, addr := testbed.HereT(t), netip.AddrPortFrom(ip, port).String()
		host.Name = addr
		testbed.Keep(t)(host.WhoTCP(addr))
		testbed.Keep(t)(host.WhoUDP(addr))
	}
}

var check = testbed.Check

// modelRun is a world, the program that serves it, and what is remembered of
// earlier steps.
type modelRun struct {
	*world
	t    *testing.T
	here *testbed.Host
	step int
	did  []string // what this step has changed

	flags  []string
	noSets bool
	listed []netip.Prefix
	dir    string
	d      *daemon
	source *manifests // of p
	log    testbed.Buffer

	own       [2]bool                    // which of nodeOwn the node has
	squatters map[uint16]net.Listener    // that have a node port of TCP and IPv4
	clients   [2]*net.UDPConn            // one of each family, with one flow to each frontend
	flows     map[lb.Frontend]answer     // that are open
	ports     map[lb.Frontend]uint16     // proxy ports of UDP frontends
	sticky    map[visitor]netip.AddrPort // where clients with affinity were sent
}

// answer is who has answered last, and by which door its client came in.
type answer struct {
	at   door
	from netip.AddrPort
}

// door is a socket of a service port: that of a node port, or a proxy port.
type door struct {
	id       lb.ID
	nodePort bool
}

type visitor struct {
	id lb.ID
	ip netip.Addr
}

func newModelRun(t *testing.T, seed, variant uint64, flags []string) *modelRun {
	r := &modelRun{world: newWorld(seed, variant), t: t, here: testbed.HereT(t), flags: flags, dir: flags[len(flags)-1], squatters: map[uint16]net.Listener{}, sticky: map[visitor]netip.AddrPort{}}
	for i, ip := range nodeMain {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, clientPort)))
		check(t, err)
		t.Cleanup(func() { _ = c.Close() })
		r.clients[i] = c
	}
	return r
}

// start starts the program, with what the folder holds.
func (r *modelRun) start() {
	r.t.Helper()
	cfg, err := config.Parse(append(r.flags, "--hostname-override", "node", "--udp-timeout", "1h", "--packet-filter", "iptables",
		"--healthz-bind-address", "", "--metrics-bind-address", ""))
	check(r.t, err)
	encoder := zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig())
	log := zap.New(zapcore.NewCore(encoder, zapcore.AddSync(&r.log), zap.InfoLevel))
	r.d = newDaemon(Options{Config: cfg, Version: "test", Log: log, SetVerbosity: func(int) {},
		LogDropped: func() uint64 { return 0 },
		Upgrade:    new(upgrade.Upgrader)})
	check(r.t, r.d.openSource())
	r.source = r.d.source.(*manifests)
	check(r.t, r.d.open(r.t.Context()))
	if r.noSets {
		for _, ipv6 := range []bool{false, true} {
			f := r.d.steering.of(ipv6)
			f.Steer = steeringBy(&redirect.IPTables{IPv6: ipv6, NoIPSet: true})
			r.d.agent.Offer(ipv6, *f)
		}
	}
	check(r.t, r.d.serve(r.t.Context(), r.d.control.desired(r.source.last.Load().Objects)))
	r.flows, r.ports = map[lb.Frontend]answer{}, map[lb.Frontend]uint16{}
	clear(r.sticky)
}

func (r *modelRun) end() {
	if err := r.d.close(); err != nil {
		r.t.Error(err)
	}
	for _, s := range r.squatters {
		_ = s.Close()
	}
	for i, has := range r.own {
		if has {
			setAddress(r.t, nodeOwn[i], false)
		}
	}
}

// change changes a manifest or a few, and now and then something around them.
func (r *modelRun) change() {
	r.did = nil
	r.log.Reset()
	r.changeAround()
	next := r.files()
	for maps.EqualFunc(next, r.written, content.equal) {
		for n := max(1, r.rng.IntN(12)-7); n > 0; n-- {
			r.world.change()
		}
		for _, name := range slices.Sorted(maps.Keys(r.broken)) {
			if r.oneIn(6) {
				delete(r.broken, name)
			}
		}
		next = r.files()
	}
	for _, name := range slices.Sorted(maps.Keys(r.written)) {
		if _, ok := next[name]; !ok {
			r.did = append(r.did, "removed "+name)
			check(r.t, os.Remove(filepath.Join(r.dir, name)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(next)) {
		if was, ok := r.written[name]; ok && was.equal(next[name]) {
			continue
		}
		text := next[name].yaml()
		r.did = append(r.did, "wrote "+name+":\n"+text)
		check(r.t, testbed.WriteManifest(r.dir, name, text))
	}
	r.written = next
}

// changeAround changes what manifests do not say: the node's addresses, who else is
// on it, and which process serves.
func (r *modelRun) changeAround() {
	switch r.rng.IntN(150) {
	case 0:
		if len(r.late()) == 0 { // at a start no file may have a problem
			r.did = append(r.did, "restarted the program")
			check(r.t, r.d.close())
			r.start()
			r.restart(r.localAddrs(), r.nodePortAddrs())
		}
	case 1, 2, 3:
		i := r.rng.IntN(len(nodeOwn))
		r.own[i] = !r.own[i]
		r.did = append(r.did, fmt.Sprintf("the node has %s: %v", nodeOwn[i], r.own[i]))
		setAddress(r.t, nodeOwn[i], r.own[i])
	case 4, 5, 6:
		port := oneOf(r.world, nodePortPool...)
		if s := r.squatters[port]; s != nil {
			r.did = append(r.did, fmt.Sprintf("port %d is left by its squatter", port))
			_ = s.Close()
			delete(r.squatters, port)
		} else if s, err := net.Listen("tcp4", fmt.Sprint("0.0.0.0:", port)); err == nil {
			r.did = append(r.did, fmt.Sprintf("port %d is taken by a squatter", port))
			r.squatters[port] = s
		}
	}
}

// apply has the program read the folder and bring it into force.
func (r *modelRun) apply() {
	r.settle()
	result, _ := r.source.loader.Load()
	var late []string
	for _, problem := range result.Problems {
		late = append(late, filepath.Base(problem.File))
	}
	slices.Sort(late)
	if late = slices.Compact(late); !slices.Equal(late, r.late()) {
		r.fail(fmt.Sprintf("not in force are %v, want %v: %v", late, r.late(), result.Problems))
	}
	if err := r.d.agent.Apply(context.Background(), r.d.control.desired(result.Objects)); err != nil {
		r.fail(err.Error())
	}
}

// fail reports what is wrong after a step.
func (r *modelRun) fail(diffs ...string) {
	r.t.Helper()
	const most = 40
	if len(diffs) > most {
		diffs = append(diffs[:most], fmt.Sprintf("and %d more", len(diffs)-most))
	}
	r.t.Errorf("step %d:\n%s\nafter:\n%s\nnot in force: %v; addresses %v; squatters on %v\nlog:\n%s", r.step, strings.Join(diffs, "\n"),
		strings.Join(r.did, "\n"), r.late(), r.localAddrs(), slices.Sorted(maps.Keys(r.squatters)), r.log.String())
}
