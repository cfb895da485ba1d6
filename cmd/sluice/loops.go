package main

import (
	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/udp"
)

// pollCards has the loops poll network cards, if that is asked. Without it all is served as well.
func (p *program) pollCards() {
	if p.cfg.DataPath.BusyPoll == 0 {
		return
	}
	if err := p.loops.BusyPoll(p.cfg.DataPath.BusyPoll); err != nil {
		p.log.Warn("network cards are not polled: give no --busy-poll, or set net.core.busy_poll on kernels before 6.9", zap.Error(err))
	}
}

// gsoDisabled reports whether UDP datagrams are sent one by one, as requested or because this
// kernel would corrupt them.
func (p *program) gsoDisabled() bool {
	if !p.cfg.DataPath.UDPGSO {
		return true
	}
	release, corrupts := udp.CorruptsGSO()
	if corrupts {
		p.log.Warn("UDP GSO is disabled: this kernel corrupts GSO batches on some network cards", zap.String("kernel", release))
	}
	return corrupts
}
