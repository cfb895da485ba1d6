package kernelflows

import (
	"time"

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
	i, ok := f.info(e, h)
	if !ok {
		return
	}
	if f.Accounting {
		f.gone(&i)
	}
	if !some {
		return
	}
	out := look.Ended{Info: i, End: endOf(e), Wait: -1, Connect: -1, FirstByte: -1, Why: why}
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

// endOf says how something has ended, as far as the last state of its entry does. An entry with time left was deleted.
func endOf(e *conntrack.Entry) lb.End {
	answered := e.Status&conntrack.SeenReply != 0
	switch {
	case e.Protocol == lb.TCP && e.State == conntrack.TCPClose && !answered:
		return lb.ServerConnect // by a reset in place of an answer
	case e.Protocol == lb.TCP && e.State == conntrack.TCPClose:
		return lb.Reset
	case e.Protocol == lb.TCP && (e.State == conntrack.TCPTimeWait || e.State == conntrack.TCPLastAck),
		e.Protocol == lb.SCTP && e.State == conntrack.SCTPClosed && answered:
		return lb.Normal
	case e.Left > 0:
		return lb.Killed
	case !answered && e.Protocol != lb.UDP, e.Protocol == lb.SCTP && e.State == conntrack.SCTPCookieWait:
		return lb.ServerTimeout
	case e.Protocol == lb.UDP:
		return lb.Normal
	}
	switch stateOf(e) {
	case look.Dialling:
		return lb.ClientConnect // the endpoint has answered, and the client no more
	case look.HalfClosed, look.Closing:
		return lb.HalfTimeout
	}
	if e.State == 0 {
		return lb.Normal // kernels before 5.12 do not say
	}
	return lb.IdleEnd
}
