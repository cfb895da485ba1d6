package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

// String names what a piece comes to.
func (p *piece) String() string {
	out := []string{p.choice.Path.String()}
	for _, s := range p.sockets {
		text := fmt.Sprint("socket ", s.frontend)
		if s.proxy {
			text = fmt.Sprint("proxy ", s.frontend)
		}
		out = append(out, text)
	}
	for _, e := range p.entries {
		out = append(out, entryText(e))
	}
	if p.kernel != nil {
		out = append(out, fmt.Sprint("kernel ", len(p.kernel.Addresses)))
	}
	return strings.Join(out, ", ")
}

// TestPiece: what a Service comes to, by its kind, its endpoints and the environment.
func TestPiece(t *testing.T) {
	const ip, port = "10.96.0.1:53", "0.0.0.0:30053"
	everywhere := []netip.Addr{netip.IPv4Unspecified()}
	some := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	in := func(mode Path, nodePorts ...netip.Addr) environment {
		return environment{mode: mode, nodePorts: nodePorts}
	}
	host := in(Userspace, everywhere...)
	host.direct = [2]bool{true, true}
	refusing := host
	refusing.refusing = true
	sources := []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	for _, test := range []struct {
		env       environment
		protocol  lb.Protocol
		endpoints []byte
		edit      func(*lb.Service)
		want      string
	}{
		{in(Userspace, everywhere...), lb.TCP, []byte{1}, nil, "userspace, socket TCP " + port + ", redirected TCP " + ip + ", accepted TCP " + port},
		{in(Userspace, everywhere...), lb.UDP, []byte{1}, nil, "userspace, proxy UDP " + ip + ", socket UDP " + port + ", redirected UDP " + ip + ", accepted UDP " + port},
		{in(Userspace, everywhere...), lb.UDP, nil, nil, "userspace, socket UDP " + port + ", refused UDP " + ip + ", refused UDP " + port},
		{in(Userspace, some...), lb.TCP, []byte{1}, func(s *lb.Service) { s.Addresses = s.Addresses[1:] },
			"userspace, socket TCP 192.0.2.1:30053, socket TCP 192.0.2.2:30053, accepted TCP 192.0.2.1:30053, accepted TCP 192.0.2.2:30053"},
		{in(Userspace), lb.TCP, []byte{1}, func(s *lb.Service) { s.Addresses[0].Local = true }, "userspace, dropped TCP " + ip},
		{in(Userspace), lb.TCP, []byte{1}, func(s *lb.Service) { s.Addresses[0].Kind, s.Addresses[0].Local = lb.ExternalIP, true },
			"userspace, redirected TCP " + ip + " inside"},
		{in(Userspace), lb.TCP, []byte{1}, func(s *lb.Service) { s.Addresses[0].Sources = sources }, "userspace, redirected TCP " + ip + " from [203.0.113.0/24]"},
		{in(IPTables, some...), lb.TCP, []byte{1}, nil, "iptables, socket TCP 192.0.2.1:30053, socket TCP 192.0.2.2:30053, passed TCP 10.96.0.1:53, kernel 3"},
		{in(IPVS, everywhere...), lb.SCTP, nil, nil, "ipvs, passed SCTP 10.96.0.1:53, kernel 2"},
		{host, lb.TCP, []byte{1}, nil, "userspace, socket TCP " + ip + ", socket TCP " + port},
		{host, lb.SCTP, nil, nil, "userspace"},
		{refusing, lb.SCTP, nil, nil, "userspace, socket SCTP " + ip + ", socket SCTP " + port},
	} {
		s := service(test.protocol, "s", 1, test.endpoints...)
		s.Addresses = append(s.Addresses, lb.Address{Kind: lb.NodePort, Addr: netip.MustParseAddrPort(port)})
		if test.edit != nil {
			test.edit(s)
		}
		table, err := lb.NewTable([]*lb.Service{s}, lb.Node{})
		if err != nil {
			t.Fatal(err)
		}
		if got := test.env.piece(table, table.At(0), test.env.choose(table.At(0))).String(); got != test.want {
			t.Errorf("%s in mode %s: %s\nwant %s", s.Protocol, test.env.mode, got, test.want)
		}
	}
}

// TestUnsettled: node ports that are elsewhere each time they are asked for end no attempt, and the
// error has it tried again.
func TestUnsettled(t *testing.T) {
	a, k := newAgent(t)
	asked := 0
	a.NodePorts = func([]netip.Addr) []netip.Addr {
		if asked++; asked > 1000 {
			t.Fatal("node ports are asked for without end")
		}
		return []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(asked)})}
	}
	err := a.Apply(t.Context(), Desired{Services: lists.Of([]*lb.Service{service(lb.UDP, "one", 1, 1)})})
	if !errors.Is(err, errUnsettled) || len(k.steered) != 1 {
		t.Errorf("error %v and %d frontends steered, want that nothing comes to rest, and one", err, len(k.steered))
	}
}

// TestHoldIsServed: where clients are held while there is no endpoint, what leads them here stays; otherwise
// they are refused, and where the kernel forwards that is up to its engine.
func TestHoldIsServed(t *testing.T) {
	for _, c := range []struct {
		name     string
		requests lb.Policies
		all      bool
		want     redirect.Action
	}{
		{"nothing is requested", lb.Policies{}, false, redirect.Refuse},
		{"the Service requests it", lb.Policies{Hold: 1}, false, redirect.Redirect},
		{"it is for all", lb.Policies{}, true, redirect.Redirect},
		{"it is for all but this Service", lb.Policies{Hold: -1}, true, redirect.Refuse},
		{"the kernel forwards", lb.Policies{Hold: 1, DataPath: "nftables"}, false, redirect.Pass},
	} {
		s := service(lb.TCP, "web", 1)
		s.Policies = &c.requests
		table, err := lb.NewTable([]*lb.Service{s}, lb.Node{})
		if err != nil {
			t.Fatal(err)
		}
		env := &environment{mode: Userspace, hold: c.all}
		got := env.piece(table, s, env.choose(s)).entries
		if len(got) != 1 || got[0].Action != c.want {
			t.Errorf("%s: %+v, want action %v", c.name, got, c.want)
		}
	}
}
