package main

import "go.uber.org/zap"

// pollCards has the loops poll network cards, if that is asked. Without it all is served as well.
func (p *program) pollCards() {
	if p.cfg.BusyPoll == 0 {
		return
	}
	if err := p.loops.BusyPoll(p.cfg.BusyPoll); err != nil {
		p.log.Warn("network cards are not polled: give no --busy-poll, or set net.core.busy_poll on kernels before 6.9", zap.Error(err))
	}
}
