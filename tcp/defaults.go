package tcp

import (
	"time"

	"github.com/sluice-lb/sluice/internal/session"
)

// session returns what connections are accepted and dialled by.
func (s *Server) session() *session.Config {
	c := &session.Config{LB: s.LB, Descriptors: s.Descriptors, DialTimeouts: s.DialTimeouts,
		MaxDials: int64(s.MaxDials), Backlog: s.Backlog}
	return c.WithDefaults()
}

func (s *Server) keepAlive() time.Duration {
	if s.KeepAlive == 0 {
		return 15 * time.Second
	}
	return s.KeepAlive
}
