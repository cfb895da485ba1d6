package netfilter

import (
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// refusing is a ruleset by which no datagram may be sent to port 9, under a lease or not.
func (l *lab) refusing(lease *Lease) *Ruleset {
	layout := testLayout(l.IPv6, nil)
	layout.Sets, layout.Lease = nil, lease
	r := NewRuleset(l.program, layout)
	r.SetChain(inFilter, []string{"-p udp -m udp --dport 9 -j REJECT"})
	r.AddJump(Jump{Table: "filter", From: "OUTPUT", To: inFilter.Chain, NewOnly: true, Comment: "test"})
	return r
}

func (l *lab) lease(lifetime time.Duration) *Lease {
	return &Lease{IPv6: l.IPv6, Prefix: "TEST-", Lifetime: lifetime}
}

// sender returns what reports whether a new flow to port 9 is refused.
func (l *lab) sender() (refused func() bool) {
	l.Helper()
	addr := "127.0.0.1:9"
	if l.IPv6 {
		addr = "[::1]:9"
	}
	c, err := net.Dial("udp", addr)
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { _ = c.Close() })
	return func() bool {
		_, err := c.Write([]byte("?"))
		if errors.Is(err, syscall.ECONNREFUSED) { // of the datagram before, where nothing listens
			_, err = c.Write([]byte("?"))
		}
		return errors.Is(err, syscall.EPERM)
	}
}

func (l *lab) put(r *Ruleset) {
	l.Helper()
	if err := r.Write(l.Context(), nil); err != nil {
		l.Fatal(err)
	}
}

// TestLease: rules match until their lease has ended, and again from when it is renewed on; one without an end is there
// for ever.
func TestLease(t *testing.T) {
	eachVariant(t, func(t *testing.T, l *lab) {
		const lifetime = time.Second // the shortest
		lease, refused := l.lease(lifetime), l.sender()
		r := l.refusing(lease)
		start := time.Now()
		l.put(r)
		if !refused() {
			t.Fatal("the rule does not match")
		}
		lapsed := func() { // nothing reports the end of a timer of the kernel's
			t.Helper()
			testbed.Eventually(t, "the rules match no more", func() bool { return !refused() })
		}
		lapsed()
		if d := time.Since(start); d < lifetime {
			t.Errorf("the rules matched for %v only", d)
		}
		if err := lease.Renew(); err != nil || !refused() {
			t.Errorf("Renew = %v, and the rules match: %v", err, refused())
		}
		lapsed()
		if intact, err := r.Verify(t.Context()); !intact || err != nil || !refused() {
			t.Errorf("Verify = %v, %v, and the rules match: %v", intact, err, refused())
		}
		lease.Lifetime = 0
		if err := lease.Renew(); err != nil {
			t.Fatal(err)
		}
		if out := l.run("ipset save " + lease.name()); strings.Count(out, "/1 timeout 0\n") != 2 {
			t.Errorf("the set of a lease without an end:\n%s", out)
		}
		layout := r.layout
		layout.Sets = []SetGroup{{Sets: []Set{lease.Set()}}}
		if err := Remove(t.Context(), layout, nil); err != nil || refused() {
			t.Errorf("Remove = %v, and the rules match: %v", err, refused())
		}
		if err := lease.Renew(); err != nil {
			t.Errorf("Renew after all is removed = %v", err)
		}
		if _, err := lease.Set().Read(); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("the set is there again: %v", err)
		}
	})
}

// TestLeaseComesWithoutGap: the rules of a process without leases get one, and match all the time; so they do while it
// is renewed.
func TestLeaseComesWithoutGap(t *testing.T) {
	eachVariant(t, func(t *testing.T, l *lab) {
		refused := l.sender()
		l.put(l.refusing(nil))
		sending := testbed.Repeat(t, 1, func() error {
			if !refused() {
				return errors.New("a datagram was sent")
			}
			return nil
		})
		lease := l.lease(time.Minute)
		l.put(l.refusing(lease))
		for range 100 {
			if err := lease.Renew(); err != nil {
				t.Fatal(err)
			}
		}
		l.put(l.refusing(nil)) // and back, to the version before
		sending.Stop()
	})
}
