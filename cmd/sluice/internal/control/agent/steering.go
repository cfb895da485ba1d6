package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

// steering is what has been passed to the steering of the families.
type steering struct {
	synced bool // it is what they make; else the next update is whole
	host   redirect.Host
	checks []redirect.Entry // for health checks
}

// hostOf returns what all entries share.
func (a *Agent) hostOf(want *Desired) redirect.Host {
	return redirect.Host{TCPPort: a.tcpPort, Inside: want.Node.PodCIDRs, ServiceCIDRs: want.Node.ServiceCIDRs,
		// SCTP clients on the node are not served at a loopback address.
		Local: slices.DeleteFunc(slices.Clone(a.local), netip.Addr.IsLoopback)}
}

// has reports whether it has been passed this, besides the Services.
func (s *steering) has(host redirect.Host, checks []redirect.Entry) bool {
	return reflect.DeepEqual(s.host, host) && slices.EqualFunc(checks, s.checks, redirect.Entry.Equal)
}

// checksOf returns the entries that let health checks in, whichever path forwards the
// Services. What a Service needs at such a frontend takes precedence.
func checksOf(plan *Plan, checks []netip.AddrPort) (out []redirect.Entry) {
	for _, addr := range checks {
		f := lb.Frontend{Protocol: lb.TCP, Addr: addr}
		s, owned, ok := plan.table.Lookup(f)
		if ok && owned.Addr != addr { // a node port
			ok = slices.Contains(plan.env.nodePorts, addr.Addr())
		}
		if ok && plan.choose(s).Path == Userspace {
			continue
		}
		out = append(out, redirect.Entry{Frontend: f, Action: redirect.Accept})
	}
	return out
}

// update returns what steering has to change for a plan whose sockets are open. It notes in
// the pieces what they are steered by then.
func (s *steering) update(plan *Plan, open *sockets, host redirect.Host, checks []redirect.Entry) redirect.Update {
	u := redirect.Update{Host: host, Whole: !s.synced}
	add := func(to *[]redirect.Entry, entries []redirect.Entry) {
		if *to == nil && len(entries) > 0 {
			*to = make([]redirect.Entry, 0, len(plan.changes)) // nearly always right
		}
		*to = append(*to, entries...)
	}
	change := func(old, now []redirect.Entry) {
		if !u.Whole && slices.EqualFunc(old, now, redirect.Entry.Equal) {
			return
		}
		if !u.Whole {
			add(&u.Remove, old)
		}
		add(&u.Add, now)
	}
	change(s.checks, checks)
	for i := range plan.changes {
		c, was := &plan.changes[i], plan.changes[i].old.steered
		if c.now != nothing {
			c.now.steered = open.steer(c.now)
		}
		change(was, c.now.steered)
	}
	return u
}

// steer passes an update to the families, if there is anything to change.
func (a *Agent) steer(ctx context.Context, u redirect.Update, checks []redirect.Entry) error {
	if !u.Whole && len(u.Add)+len(u.Remove) == 0 && a.steering.has(u.Host, checks) {
		return nil
	}
	var errs []error
	for _, f := range a.Families {
		if f.Steer != nil {
			errs = append(errs, f.Steer.Sync(ctx, u))
		}
	}
	if err := errors.Join(errs...); err != nil {
		a.steering.synced = false
		return fmt.Errorf("steer traffic: %w", err)
	}
	a.steering = steering{true, u.Host, checks}
	return nil
}
