//go:build !linux

package udp

// state is what a Server has on this platform.
type state struct{ plain goroutines }

func (s *Server) mover() mover { return &s.plain }
