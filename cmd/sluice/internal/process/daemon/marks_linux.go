package daemon

import (
	"context"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/internal/netfilter"
)

// warnMarks says once whose rules use the mark bits of data path queue and of transparent, too.
func (s *steering) warnMarks(ctx context.Context) {
	if s.config.DataPath.Mode == config.ModeWinUserspace {
		return
	}
	at, err := netfilter.Marking(ctx, s.config.Kernel.MarkMask)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.log.Warn("mark bits of other programs are unknown", zap.Error(err))
	case len(at) > 0:
		s.log.Warn("another program uses the same mark bits", zap.String("table", at[0].Table),
			zap.String("chain", at[0].Chain), zap.Int("chains", len(at)),
			zap.String("hint", "give other bits by --mark-mask, or to the other program"))
	}
}
