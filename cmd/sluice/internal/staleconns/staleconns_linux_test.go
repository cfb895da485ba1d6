package staleconns

import (
	"context"
	"net"
	"net/netip"
	"os"
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

const (
	serviceAddr = "10.96.0.90:80"

	patience = 20 * time.Second // how long a test waits for what must happen
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

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

// TestRetries: stale entries are deleted also if that fails twice at first, which is logged
// once.
func TestRetries(t *testing.T) {
	h := testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node
	at := netip.MustParseAddrPort(serviceAddr)
	core, log := observer.New(zap.WarnLevel)
	err := h.Do(func() error {
		entry := &netlink.ConntrackFlow{FamilyType: unix.AF_INET, TimeOut: 600, ProtoInfo: &netlink.ProtoInfoTCP{State: 1}} // SYN_SENT
		client, server := net.IP{192, 0, 2, 1}, net.IP(at.Addr().AsSlice())
		entry.Forward = netlink.IPTuple{Protocol: unix.IPPROTO_TCP, SrcIP: client, SrcPort: 1024, DstIP: server, DstPort: at.Port()}
		entry.Reverse = netlink.IPTuple{Protocol: unix.IPPROTO_TCP, SrcIP: server, SrcPort: at.Port(), DstIP: client, DstPort: 1024}
		if err := netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, entry); err != nil {
			return err
		}
		restore := withoutFiles(t)
		defer restore()
		ctx, stop := context.WithTimeout(t.Context(), patience)
		defer stop()
		c := New(false, zap.New(core))
		tries := 0
		c.Observe = func(time.Duration) {
			switch tries++; tries {
			case 2:
				restore()
			case 3:
				stop()
			}
		}
		c.Add([]lb.Frontend{{Protocol: lb.TCP, Addr: at}})
		c.Run(ctx)
		if n := c.Deleted(); tries != 3 || n != 1 {
			t.Errorf("%d deleted at try %d, want 1 at the third", n, tries)
		}
		return nil
	})
	testbed.Check(t, err)
	if n := log.Len(); n != 1 {
		t.Errorf("%d lines in the log, want 1: %v", n, log.All())
	}
}

// TestGivesUp: a walk that never succeeds is not retried when no client asks any more, and
// takes place for the next frontend nevertheless, without another line in the log.
func TestGivesUp(t *testing.T) {
	core, log := observer.New(zap.WarnLevel)
	defer withoutFiles(t)()
	synctest.Test(t, func(t *testing.T) {
		c := New(false, zap.New(core))
		tries := 0
		c.Observe = func(time.Duration) { tries++ }
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.Run(ctx)
		}()
		for range 2 {
			tries = 0
			c.Add([]lb.Frontend{{Protocol: lb.SCTP, Addr: netip.MustParseAddrPort(serviceAddr)}})
			time.Sleep(2 * retryFor) // on the clock of the bubble, which takes no time
			synctest.Wait()
			if least := int(retryFor / maxPause); tries < least-1 || tries > least+10 {
				t.Errorf("%d tries in %v", tries, 2*retryFor)
			}
			if n := len(c.take()); n != 0 {
				t.Errorf("%d frontends are kept", n)
			}
		}
		stop()
		<-ended
	})
	if n := log.Len(); n != 1 {
		t.Errorf("%d lines in the log, want 1: %v", n, log.All())
	}
}
