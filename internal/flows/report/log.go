package report

import (
	"time"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

// ended counts and logs what an event says, as far as that is requested.
func (f *Flows) ended(event *conntrack.Event) {
	e, h := &event.Entry, f.here.Load()
	some, onlyErrors := f.LB.Policies(lb.Frontend{Protocol: e.Protocol, Addr: e.Dst}).Logs()
	why := f.whys.take(e)
	if !some && !f.Accounting {
		return
	}
	i, path, ok := f.info(e, h)
	if !ok {
		return
	}
	if f.Accounting {
		f.gone(&i, path)
	}
	if !some {
		return
	}
	out := look.Ended{Info: i, End: flows.EndOf(e), Wait: -1, Connect: -1, FirstByte: -1, Why: why}
	if s, ok := f.LB.Table().Service(i.Service); out.End == lb.Killed && ok && !has(s, i.Backend) {
		out.End = lb.EndpointLeft
	}
	if out.End == lb.Normal && (onlyErrors || !f.sample.Next(f.Sample)) {
		return
	}
	if !e.Ended.IsZero() && !e.Begun.IsZero() {
		// An entry outlives its connection by a timeout, 120 s after the last FIN.
		out.Kernel.At = e.Ended
		if i.Known {
			out.Kernel.At = e.Ended.Add(-i.Idle)
		}
		out.Age = max(out.Kernel.At.Sub(e.Begun), time.Duration(0))
		out.Kernel.At = e.Begun.Add(out.Age)
	}
	f.Add(&out)
}
