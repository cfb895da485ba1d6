package report

import (
	"errors"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
)

// endDrained ends, at their deadlines, the connections to endpoints that an operator has drained: it deletes their
// entries, so that their next packet is one of a new connection, for which rules have other endpoints. Those do not
// know it, and answer with a reset. Each deadline until now is heeded once, and again after an error.
func (f *Flows) endDrained(now int64) error {
	drains := f.LB.Drains()
	if drains.Next(f.drained) > now {
		return nil
	}
	if !f.InUse() {
		f.drained = now
		return nil
	}
	h, err := f.lookAround()
	if err != nil {
		return err
	}
	ended := uint64(0)
	for _, ipv6 := range []bool{false, true} {
		n, err2 := conntrack.Delete(ipv6, func(e *conntrack.Entry) bool {
			s, _, ok := f.of(e, h)
			if !ok {
				return false
			}
			by, drained := drains.Of(s.ID, e.Replies)
			return drained && by.Deadline != 0 && by.Deadline <= now
		})
		ended, err = ended+n, errors.Join(err, err2)
	}
	if ended > 0 {
		f.Log.Info("ended connections to drained endpoints on kernel paths",
			zap.Uint64("connections", ended))
	}
	if err == nil {
		f.drained = now
	}
	return err
}
