package flows

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// withoutFiles lets this process open no file descriptor until restore is called, which may
// be called twice.
func withoutFiles(t *testing.T) (restore func()) {
	t.Helper()
	raise, err := testbed.LimitDescriptors(0)
	testbed.Check(t, err)
	return func() {
		if err := raise(); err != nil {
			t.Error(err)
		}
	}
}

// TestRetries: stale entries are deleted also if that fails twice at first, which is logged once: of UDP, and of TCP
// where a client asked before there was a Service.
func TestRetries(t *testing.T) {
	h := testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node
	core, log := observer.New(zap.WarnLevel)
	s := &Stale{Log: zap.New(core)}
	looked := 0
	s.Observe = func(bool, time.Duration) { looked++ }
	create := func(protocol uint8, to netip.AddrPort, info netlink.ProtoInfo) error {
		from, server := net.IP{192, 0, 2, 1}, net.IP(to.Addr().AsSlice())
		e := &netlink.ConntrackFlow{FamilyType: unix.AF_INET, TimeOut: 600, ProtoInfo: info}
		e.Forward = netlink.IPTuple{Protocol: protocol, SrcIP: from, SrcPort: 1024, DstIP: server, DstPort: to.Port()}
		e.Reverse = netlink.IPTuple{Protocol: protocol, SrcIP: server, SrcPort: to.Port(), DstIP: from, DstPort: 1024}
		return netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, e)
	}
	h.DoT(t, func() error {
		if err := create(unix.IPPROTO_TCP, cluster, &netlink.ProtoInfoTCP{State: 1}); err != nil { // SYN_SENT
			return err
		}
		if err := create(unix.IPPROTO_UDP, cluster, nil); err != nil {
			return err
		}
		s.Add([]lb.Frontend{{Protocol: lb.TCP, Addr: cluster}})
		s.Change(lb.Frontend{Protocol: lb.UDP, Addr: cluster}, Place{}, Place{Kind: Kernel}, false)
		known := func(lb.Frontend) bool { return true }
		restore := withoutFiles(t)
		defer restore()
		for try := range 2 {
			if !s.Reconcile(node, known) || s.Deleted(false) != 0 {
				t.Errorf("try %d without descriptors: %d deleted, or it is not to be tried again", try, s.Deleted(false))
			}
		}
		restore()
		if s.Reconcile(node, known) || s.Deleted(false) != 2 {
			t.Errorf("%d entries deleted, want 2", s.Deleted(false))
		}
		if s.Reconcile(node, known) || looked != 3 {
			t.Errorf("looked %d times, want 3: nothing was left", looked)
		}
		return nil
	})
	if n := log.Len(); n != 1 {
		t.Errorf("%d lines in the log, want 1: %v", n, log.All())
	}
}

// TestGivesUp: what never succeeds is not tried for ever, and again for the next frontend, without another line in the
// log.
func TestGivesUp(t *testing.T) {
	core, log := observer.New(zap.WarnLevel)
	s := &Stale{Log: zap.New(core)}
	defer withoutFiles(t)()
	synctest.Test(t, func(t *testing.T) {
		for range 2 {
			s.Add([]lb.Frontend{{Protocol: lb.SCTP, Addr: cluster}})
			if !s.Reconcile(node, nil) {
				t.Error("given up at once")
			}
			time.Sleep(retryFor + 1) // on the clock of the bubble, which takes no time
			if s.Reconcile(node, nil) {
				t.Errorf("tried again after %v", retryFor)
			}
		}
	})
	if n := log.Len(); n != 1 {
		t.Errorf("%d lines in the log, want 1: %v", n, log.All())
	}
}
