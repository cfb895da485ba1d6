package agent

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// TestChoose: who forwards a Service, and what is said if it is not who should.
func TestChoose(t *testing.T) {
	all, none := abilities{}, abilities{NFTables: errNoEngine, IPTables: errNoEngine,
		IPVS: errors.New("no ip_vs in this kernel"), userspaceSCTP: errSCTP}
	kernelSCTP, old := abilities{userspaceSCTP: errSCTP}, abilities{userspaceSCTP: errSCTP, NFTables: errNoEngine}
	family := (&Family{}).abilities(true, nil)
	for _, test := range []struct {
		name      string
		protocol  lb.Protocol
		requested string
		mode      Path
		can       abilities
		want      Path
		fallback  string // a part of the reason; empty: none
	}{
		{"the mode", lb.TCP, "", Userspace, all, Userspace, ""},
		{"another mode", lb.UDP, "", IPVS, all, IPVS, ""},
		{"a request", lb.TCP, "iptables", Userspace, all, IPTables, ""},
		{"a request against the mode", lb.TCP, "userspace", IPTables, all, Userspace, ""},
		{"not there", lb.TCP, "ipvs", IPTables, abilities{IPVS: none[IPVS]}, Userspace, "no ip_vs in this kernel"},
		{"mode not there", lb.TCP, "", IPVS, none, Userspace, "ipvs is not available"},
		{"SCTP", lb.SCTP, "", Userspace, all, Userspace, ""},
		{"SCTP that user space does not forward", lb.SCTP, "", Userspace, kernelSCTP, NFTables, "SCTP"},
		{"SCTP that requests what there is not", lb.SCTP, "userspace", IPVS, kernelSCTP, NFTables, "SCTP"},
		{"SCTP without nftables", lb.SCTP, "", Userspace, old, IPTables, "SCTP"},
		{"queue", lb.TCP, "queue", Userspace, all, Queue, ""},
		{"mode queue", lb.UDP, "", Queue, all, Queue, ""},
		{"no queues", lb.TCP, "queue", NFTables, abilities{Queue: errNoEngine}, Userspace, "queue is not available"},
		{"SCTP by a request", lb.SCTP, "ipvs", Userspace, kernelSCTP, IPVS, ""},
		{"SCTP and no path for it", lb.SCTP, "", Userspace, none, None, "SCTP"},
		{"no such family", lb.TCP, "iptables", Userspace, family, None, "family"},
	} {
		s := requesting(service(test.protocol, "s", 1, 1), test.requested)
		c := choose(s, test.mode, &test.can, new(lb.Policies))
		if c.Path != test.want || (c.Fallback == "") != (test.fallback == "") ||
			!strings.Contains(c.Fallback, test.fallback) {
			t.Errorf("%s: %s because %q, fallback %q; want %s, %q", test.name, c.Path, c.Why, c.Fallback, test.want,
				test.fallback)
		}
	}
}

// TestPROXYStaysInUserspace: a Service that sends PROXY headers is in user space in every mode, with every annotation,
// and at the end of the process. The kernel sends no such header, for which the endpoint waits.
func TestPROXYStaysInUserspace(t *testing.T) {
	announced := requesting(service(lb.TCP, "web", 1, 1), "iptables")
	announced.Policies.ProxyProtocol = "v2"
	for _, mode := range Paths() {
		c := choose(announced, mode, new(abilities), new(lb.Policies))
		if c.Path != Userspace || c.Why != "annotation sluice.io/proxy-protocol" ||
			c.Fallback != "data path iptables has no proxy-protocol" {
			t.Errorf("in mode %s: %+v", mode, c)
		}
	}
}

// TestPoliciesKeepInUserspace: a Service that requests what the mode's path does not have is in user space, unless it
// requests the path by its name, or user space is not there; and when this process ends the kernel may have it.
func TestPoliciesKeepInUserspace(t *testing.T) {
	holding := func(path string) *lb.Service {
		s := requesting(service(lb.TCP, "web", 1, 1), path)
		s.Policies.Hold = 1e9
		return s
	}
	for _, mode := range Paths() {
		c := choose(holding(""), mode, new(abilities), new(lb.Policies))
		path, why := Userspace, "annotation sluice.io/hold, which data path "+mode.String()+" does not have"
		if mode == Userspace { // which has it
			path, why = mode, "--proxy-mode"
		}
		if c.Path != path || c.Why != why || c.Fallback != "" {
			t.Errorf("in mode %s: %+v", mode, c)
		}
		if c := choose(holding("nftables"), mode, new(abilities), new(lb.Policies)); c.Path != NFTables {
			t.Errorf("in mode %s, by name: %+v", mode, c)
		}
	}
	if c := choose(holding(""), NFTables, &abilities{Userspace: errNoEngine}, new(lb.Policies)); c.Path != NFTables {
		t.Errorf("without user space: %+v", c)
	}
}
