//go:build !linux

package udp

import "github.com/sluice-lb/sluice/internal/look"

// Look finds nothing: flows are served by goroutines here.
func (s *Server) Look(_, _ int, _ *look.Query, _ func(look.Info) (more bool)) (next int, err error) {
	return look.End, nil
}
